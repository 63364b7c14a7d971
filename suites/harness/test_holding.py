"""What a config implies in bytes, and what a model is seen to hold, to round and to make."""

from dataclasses import replace

import pytest
import torch

import conformance.builtin_variants  # noqa: F401 - registers them
from conformance.cases import ModelCase
from conformance.memory import memory_of
from conformance.numerics import answers, exchanges, holding
from conformance.numerics.allocation import Watch, judge_largest
from conformance.numerics.settings import ORACLE
from conformance.variants import variants
from conformance.weights import make_weights
from reference_impl import Rope
from reference_impl.rope import inv_freq, tables

pytestmark = pytest.mark.usefixtures("one_thread")

# As published, or counted by others: model cards; rasbt/LLMs-from-scratch#822 for Llama 3.2.
PUBLISHED = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "tinyllama-1.1b": 1_100_048_384,
    "smollm2-135m": 134_515_008,
}
SMALL = ModelCase().config


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_number_of_parameters_is_the_published_one(name):
    memory = memory_of(variants([name])[0].config, torch.bfloat16)
    assert memory.parameters == PUBLISHED[name]
    assert memory.parameter_bytes == memory.gradient_bytes == 2 * PUBLISHED[name]


def test_a_cache_of_the_whole_context_of_llama_3_takes_a_gibibyte():
    config = variants(["llama-3-8b"])[0].config
    assert memory_of(config, torch.bfloat16).cache_bytes == 2**30
    assert memory_of(config, torch.float32, batch=3, tokens=1).cache_bytes == 3 * 2 * 32 * 8 * 128 * 4


def test_biases_are_counted():
    biased = replace(SMALL, attention_bias=True, mlp_bias=True)
    own = 6 * 16 + 2 * (2 * 16) + 48 + 80 + 80 + 48
    assert memory_of(biased).parameters - memory_of(SMALL).parameters == 2 * own


def test_a_negative_number_of_tokens_is_refused():
    with pytest.raises(ValueError, match="batch is 1 and tokens -1, expected numbers of at least 0"):
        memory_of(SMALL, tokens=-1)


def test_views_and_second_names_count_once():
    whole = torch.zeros(4, 6)
    tensors = [whole, whole[1:], whole.mT, torch.zeros(2)]
    assert holding.storage_bytes(tensors) == 4 * (24 + 2)
    assert holding.distinct_elements(tensors) == 24 + 2


def test_of_views_the_union_counts():
    whole = torch.zeros(10)
    assert holding.distinct_elements([whole[:4], whole[2:6], whole[::9]]) == 7
    assert holding.distinct_elements([torch.zeros(1, 3).expand(5, 3)]) == 3


def test_bytes_too_many_and_too_few_are_told():
    assert holding.judge_bytes("parameters", [torch.zeros(10)], 40).passed
    for expected in (36, 44):
        verdict = holding.judge_bytes("parameters", [torch.zeros(10)], expected)
        assert not verdict.passed
        assert f"parameters take 40 bytes, expected {expected}" in verdict.reason
    assert holding.judge_bytes("buffers", [torch.zeros(10)], 44, at_most=True).error == 40
    assert not holding.judge_bytes("buffers", [torch.zeros(10)], 36, at_most=True).passed


@pytest.mark.parametrize(
    ("dtype", "narrow"),
    [
        (dtype, narrow)
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
        for narrow in holding.ROUNDINGS
        if narrow != dtype
    ],
)
def test_a_rounding_on_the_way_in_is_seen_whatever_the_layout(dtype, narrow):
    weights = make_weights(SMALL, 0, "loud", dtype)
    assert holding.rounded_through([w.flip(0) for w in weights.values()], weights) is None
    rounded = torch.cat([w.flatten() for w in weights.values()]).to(narrow).to(dtype)
    assert holding.rounded_through([rounded], weights) == narrow


def test_weights_that_were_transformed_are_not_taken_for_rounded_ones():
    weights = make_weights(SMALL, 0, "loud")
    assert holding.rounded_through([w - 1 for w in weights.values()], weights) is None


ROPE = Rope(
    rope_theta=5e5,
    rope_type="llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=32,
)
SCALED = replace(SMALL, head_dim=32, rope=ROPE)
FREQUENCIES = inv_freq(ROPE, 32)
COS, SIN = tables(FREQUENCIES, torch.arange(256), torch.float32)
KEPT = {
    "frequencies": FREQUENCIES,
    "frequencies before scaling": inv_freq(Rope(rope_theta=5e5), 32),
    "frequencies, twice each": FREQUENCIES.repeat_interleave(2),
    "cos": COS,
    "sin in bfloat16": SIN.bfloat16(),
    "cos of full width": torch.cat((COS, COS), dim=-1),
    "sin of adjacent pairs": SIN.repeat_interleave(2, dim=-1),
    "angles": torch.arange(256)[:, None] * FREQUENCIES,
    "cos with axes for batch and heads": COS[None, :, None],
    "cos and sin, complex": torch.polar(torch.ones(256, 16), torch.arange(256)[:, None] * FREQUENCIES),
    "cos and sin, stacked": torch.stack((COS, SIN), dim=-1),
    "cos of a few positions": COS[:9],
}


@pytest.mark.parametrize("name", KEPT)
def test_frequencies_and_tables_are_recognised(name):
    found = holding.resembles_rotary(KEPT[name], SCALED)
    assert found
    assert name.startswith(found)


def test_weights_are_taken_for_no_table():
    for regime in ("loud", "quiet", "outlier"):
        weights = make_weights(SCALED, 0, regime)
        assert not any(holding.resembles_rotary(w, SCALED) for w in weights.values())


@pytest.mark.parametrize("variant", [v.name for v in variants()])
@pytest.mark.parametrize("like", [torch.ones(48), torch.ones(16), torch.ones(256, 32), torch.zeros(256, 16)])
def test_an_untrained_norm_is_taken_for_no_table(variant, like):
    assert not holding.resembles_rotary(like, ModelCase(variant=variant).config)


@pytest.mark.parametrize("variant", [v.name for v in variants()])
def test_the_frequencies_and_tables_of_every_variant_are_recognised(variant):
    config = ModelCase(variant=variant).config
    frequencies = inv_freq(config.rope, config.head_dim)
    cos, sin = tables(frequencies, torch.arange(64), torch.bfloat16)
    found = [holding.resembles_rotary(t, config) for t in (frequencies, frequencies.bfloat16(), cos, sin)]
    assert found == ["frequencies", "frequencies", "cos", "sin"]


def test_the_largest_tensor_made_is_remembered_with_its_source():
    with Watch() as watch:
        torch.ones(3) + torch.ones(100, 7).sum()
    assert watch.elements == 700
    assert watch.largest.startswith("[100, 7] torch.float32 by aten.ones")
    assert judge_largest(watch, 701, "").passed
    verdict = judge_largest(watch, 700, "a mask")
    assert not verdict.passed
    assert verdict.reason.endswith("700 elements: a mask")


def test_an_expanded_view_is_as_small_as_its_storage():
    with Watch() as watch:
        torch.ones(1, 5).expand(1000, 5)
        torch.ones(10**6, device="meta")
    assert watch.elements == 5


def test_what_was_made_elsewhere_is_seen_where_it_is_held():
    made = torch.ones(50)
    with Watch() as watch:
        pass
    watch.look("the model, which holds it", [made])
    assert watch.elements == 50


def test_mixups_exchange_tensors_of_one_shape_alone():
    weights = make_weights(SMALL, 0, "loud")
    found = exchanges.mixups(SMALL)
    assert all(weights[a].shape == weights[b].shape for taken in found.values() for a, b in taken.items())
    assert all(a != b for taken in found.values() for a, b in taken.items())
    norms = "model.layers.0.input_layernorm.weight", "model.layers.0.post_attention_layernorm.weight"
    for expected in (
        "model.layers.1.mlp.gate_proj.weight and model.layers.1.mlp.up_proj.weight exchanged",
        "self_attn.v_proj.weight of every layer holding the values of self_attn.k_proj.weight of every layer",
        f"{norms[0]} and {norms[1]} exchanged",
        "layer 0 and layer 1 exchanged",
        "lm_head.weight holding the values of model.embed_tokens.weight",
    ):
        assert expected in found


def test_a_tied_model_of_one_layer_has_no_ends_and_no_layers_to_exchange():
    one = replace(SMALL, num_hidden_layers=1, tie_word_embeddings=True)
    assert not any("every layer" in name or "lm_head" in name for name in exchanges.mixups(one))


@pytest.mark.parametrize("variant", ["llama-3-8b", "llama-3.2-1b"])
def test_every_mixup_stands_far_from_the_right_logits(variant):
    case = ModelCase(variant=variant, batch=1, tokens=9)
    right = answers.logits(case, replace(ORACLE, dtype=torch.float32))
    verdict = exchanges.judge_exchanges(right, case)
    assert verdict.passed
    assert float(verdict.facts["nearest mix-up"].split()[0]) > 1e4


@pytest.mark.parametrize("name", ["layer 0 and layer 1 exchanged", None])
def test_only_a_mixup_is_found(name):
    case = ModelCase(batch=1, tokens=9)
    wrong = exchanges._logits_of_mixups(case)[name] if name else answers.logits(case, ORACLE) * 1.5
    verdict = exchanges.judge_exchanges(wrong.float(), case)
    assert verdict.passed == (name is None)
    assert not name or verdict.reason == f"the logits are those of {name}"


def test_a_case_on_which_a_mixup_cannot_be_seen_is_refused():
    case = ModelCase(batch=1, tokens=1)  # one token attends to itself, whatever its query and key
    with pytest.raises(ValueError, match=r"has no power: .*k_proj.*stays within the budget"):
        exchanges.judge_exchanges(answers.logits(case, replace(ORACLE, dtype=torch.float32)), case)
