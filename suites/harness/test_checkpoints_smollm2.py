"""The built-in trained checkpoint, where its package is installed: read as transformers reads it."""

import pytest
import torch

import conformance.builtin_variants  # noqa: F401 - registers them
from conformance.checkpoints import NotInstalledError, load, resolve
from conformance.checkpoints.compare import TEXT, layer_outputs, perplexity, token_ids
from conformance.variants import variants
from reference_impl import Llama
from reference_impl.rope import to_adjacent


@pytest.fixture(scope="session")
def smollm2():
    try:
        resolve("smollm2")
    except NotInstalledError as error:
        pytest.skip(str(error))
    return load("smollm2")


def test_smollm2_is_its_variant(smollm2):
    (variant,) = variants(["smollm2-135m"])
    assert smollm2.config == variant.config
    assert smollm2.notes == ()


def test_smollm2_is_to_the_bit_what_transformers_reads(smollm2):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        smollm2.source.parent, gguf_file=smollm2.source.name, dtype=torch.float32
    )
    theirs = model.state_dict()
    assert model.config.tie_word_embeddings
    assert torch.equal(theirs.pop("lm_head.weight"), theirs["model.embed_tokens.weight"])
    assert theirs.keys() == smollm2.weights.keys()
    assert all(torch.equal(theirs[name], value) for name, value in smollm2.weights.items())


def test_smollm2_s_tokenizer_gives_the_ids_that_transformers_gives(smollm2):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(smollm2.source.parent, gguf_file=smollm2.source.name)
    text = TEXT.read_text(encoding="utf-8")
    ours = smollm2.tokenizer.encode(text)
    # Without special tokens: transformers prepends one, though the file says add_bos_token = false.
    assert theirs.encode(text, add_special_tokens=False) == ours
    assert smollm2.tokenizer.decode(ours) == text
    assert 290 <= len(ours) <= 310


def test_smollm2_predicts_english_only_when_the_pair_layout_is_undone(smollm2):
    tokens, config = token_ids(smollm2, 100), smollm2.config
    adjacent = {
        name: to_adjacent(value, config.num_key_value_heads) if ".k_proj." in name else value
        for name, value in smollm2.weights.items()
    }
    right, wrong = (
        perplexity(layer_outputs(Llama(config, weights), tokens)["logits"], tokens)
        for weights in (smollm2.weights, adjacent)
    )
    assert right < 30
    assert wrong > 10 * right
