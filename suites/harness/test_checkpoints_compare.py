"""What a trained checkpoint is compared by: the streamed oracle, perplexity, greedy tokens."""

from pathlib import Path

import pytest
import torch

from conformance.checkpoints import Checkpoint
from conformance.checkpoints.compare import (
    cast,
    greedy,
    layer_outputs,
    oracle_greedy,
    oracle_outputs,
    parting,
    perplexity,
    streamed,
    token_ids,
)
from conformance.implementations.reference import Reference
from conformance.numerics.settings import WEIGHT_THEN_CAST
from conformance.weights import make_weights
from reference_impl import Llama, LlamaConfig

CONFIG = LlamaConfig(
    vocab_size=67,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=16,
)
TOKENS = torch.arange(40)[None] % CONFIG.vocab_size


@pytest.fixture
def weights():
    return make_weights(CONFIG, 0, "loud")


def checkpoint(weights, tokenizer=None):
    return Checkpoint(name="x", config=CONFIG, weights=weights, tokenizer=tokenizer, source=Path("x"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_streamed_oracle_is_the_float64_reference_to_the_bit(weights, dtype):
    rounded = cast(weights, dtype)
    whole = layer_outputs(Llama(CONFIG, rounded, dtype=torch.float64), TOKENS)
    oracle = oracle_outputs(CONFIG, rounded, TOKENS)
    assert list(oracle) == [*(f"layers.{i}.mlp_residual" for i in range(3)), "logits"]
    assert all(torch.equal(oracle[name], whole[name]) for name in whole)
    assert {value.dtype for value in oracle.values()} == {torch.float64}


def test_streaming_keeps_the_conventions_it_is_given(weights):
    rounded = cast(weights, torch.bfloat16)
    whole = layer_outputs(Llama(CONFIG, rounded, ops=WEIGHT_THEN_CAST, dtype=torch.bfloat16), TOKENS)
    own = layer_outputs(streamed(CONFIG, rounded, torch.bfloat16, WEIGHT_THEN_CAST), TOKENS)
    other = layer_outputs(streamed(CONFIG, rounded, torch.bfloat16), TOKENS)
    assert torch.equal(own["logits"], whole["logits"])
    assert not torch.equal(own["logits"], other["logits"])


def test_layer_outputs_are_one_residual_stream_a_layer_and_the_logits(weights):
    seen = layer_outputs(Llama(CONFIG, weights), TOKENS)
    assert seen.pop("logits").shape == (1, 40, CONFIG.vocab_size)
    assert {tuple(value.shape) for value in seen.values()} == {(1, 40, CONFIG.hidden_size)}


def test_perplexity_of_equal_logits_is_the_vocabulary():
    assert perplexity(torch.zeros(2, 100, 67, dtype=torch.bfloat16), TOKENS.repeat(2, 3)[:, :100]) == (
        pytest.approx(67, rel=1e-12)
    )


def test_perplexity_is_the_exponential_of_the_cross_entropy_of_the_next_token():
    logits = torch.randn(1, 40, 67, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    want = torch.nn.functional.cross_entropy(logits[0, :-1], TOKENS[0, 1:]).exp().item()
    assert perplexity(logits, TOKENS) == pytest.approx(want, rel=1e-12)


def test_a_single_token_has_no_perplexity():
    with pytest.raises(ValueError, match="1 tokens have no perplexity, expected at least 2"):
        perplexity(torch.zeros(1, 1, 67), TOKENS[:, :1])


def test_greedy_with_the_cache_is_the_argmax_of_full_passes(weights):
    ids = greedy(Reference().build(CONFIG, weights), TOKENS[:, :7], 9)
    tokens = torch.cat((TOKENS[:, :7], torch.tensor([ids])), dim=1)
    logits = Llama(CONFIG, weights)(tokens)
    assert logits[0, 6:-1].argmax(-1).tolist() == ids
    assert len(set(ids)) > 1


class Parrot:
    """A draft that always guesses the same."""

    def new_cache(self, *_):
        return None

    def step(self, tokens, _):
        return torch.nn.functional.one_hot(tokens * 0 + 5, CONFIG.vocab_size)


@pytest.mark.parametrize("bad", [False, True], ids=["good draft", "bad draft"])
def test_the_oracle_s_greedy_tokens_do_not_depend_on_the_draft(weights, bad):
    draft = Parrot() if bad else Reference().build(CONFIG, weights)
    ids, logits = oracle_greedy(CONFIG, weights, TOKENS[:, :7], draft, 9)
    wide = Reference().build(CONFIG, cast(weights, torch.float64))
    assert ids == greedy(wide, TOKENS[:, :7], 9)
    assert logits.shape == (9, CONFIG.vocab_size)
    assert logits.argmax(-1).tolist() == ids


def test_greedy_tokens_part_at_the_first_difference_by_the_oracle_s_preference():
    logits = torch.tensor([[3.0, 1.0, 0.0], [0.0, 2.5, 2.0], [9.0, 0.0, 0.0]], dtype=torch.float64)
    assert parting([0, 1, 0], [0, 1, 0], logits) is None
    assert parting([0, 2, 2], [0, 1, 0], logits) == (1, 0.5)


class Letters:
    """A tokenizer of one id for each character."""

    def encode(self, text):
        return [ord(c) % 60 for c in text]


def test_tokens_come_from_the_text_or_from_a_seed(weights):
    text = token_ids(checkpoint(weights, Letters()), 20)
    assert text[0, :5].tolist() == Letters().encode("It is")
    drawn = token_ids(checkpoint(weights), 20)
    assert drawn.shape == text.shape
    assert torch.equal(drawn, token_ids(checkpoint(weights), 20))
    assert drawn.max() < CONFIG.vocab_size


def test_a_tokenizer_of_another_model_is_refused(weights):
    class Foreign:
        def encode(self, text):
            return [len(text)]

    with pytest.raises(ValueError, match=r"gives id 1\d\d\d, its vocab_size is 67"):
        token_ids(checkpoint(weights, Foreign()))
