"""Arrows: the table says what the reference says, and the first arrow that is wrong is named."""

from dataclasses import replace

import pytest
import torch

from conformance import ModelCase, Subject, Unsupported
from conformance.faults import implementation
from conformance.implementations.reference import Reference
from conformance.inputs import DTYPES
from conformance.numerics.arrows import TOKENS, arrows, distinct
from conformance.numerics.settings import CONVENTIONS, ORACLE, yardsticks
from conformance.numerics.taps import first_over, judge_arrows, judge_taps, oracle_taps, way

pytestmark = pytest.mark.usefixtures("one_thread")

CASES = [
    ModelCase(variant=variant, shape=shape, dtype=dtype, batch=2, tokens=17)
    for variant, shape in (("llama-2-7b", "mha"), ("llama-3-8b", "gqa"), ("llama-3.2-1b", "gqa"))
    for dtype in DTYPES
]
CASE = CASES[3]
BIASED = replace(CASE, but=(("attention_bias", True), ("mlp_bias", True), ("hidden_act", "gelu")))


def taps_of(case, subject=None):
    with torch.no_grad():
        return (subject or Subject(Reference())).model(case).taps(case.token_ids())


def names(case):
    return [arrow.tap for arrow in arrows(case.config)]


@pytest.mark.parametrize("case", [*CASES, BIASED], ids=lambda c: c.spec)
def test_the_arrows_are_those_of_the_reference_in_its_order(case):
    assert names(case) == list(oracle_taps(case))


def test_an_arrow_starts_from_earlier_ones():
    known = {TOKENS}
    for arrow in arrows(CASE.config):
        assert set(arrow.inputs) <= known
        known.add(arrow.tap)


@pytest.mark.parametrize("case", [*CASES, BIASED], ids=lambda c: c.spec)
def test_from_the_oracles_own_taps_every_arrow_gives_the_oracles_next_one_to_the_bit(case):
    taps = {TOKENS: case.token_ids(), **oracle_taps(case)}
    for arrow in arrows(case.config):
        assert torch.equal(arrow.answer(taps, way(case, ORACLE)), taps[arrow.tap]), arrow.tap


@pytest.mark.parametrize("dtype", DTYPES)
def test_ways_that_are_left_out_differ_from_none_that_is_kept(dtype):
    case = replace(CASE, dtype=dtype)
    taps = {TOKENS: case.token_ids(), **taps_of(case)}
    ways = [way(case, setting) for setting in yardsticks(case.torch_dtype)]
    for arrow in arrows(case.config):
        kept = [arrow.answer(taps, one) for one in distinct([arrow], ways)]
        assert all(any(torch.equal(arrow.answer(taps, one), y) for y in kept) for one in ways), arrow.tap


@pytest.mark.parametrize("ops", CONVENTIONS)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.spec)
def test_every_accepted_convention_is_far_from_the_line_on_every_arrow(case, ops):
    judged = judge_arrows(taps_of(case, Subject(Reference(ops))), case)
    assert [tap for tap, _ in judged] == names(case)
    assert max(verdict.headroom for _, verdict in judged) < 0.5


FIRST = {
    "block.embedding-scaled": "embedding",
    "norm.n-minus-1": "layers.0.attn_norm",
    "block.q-biased": "layers.0.q",
    "weights.v-permuted": "layers.0.v",
    "rope.interleaved": "layers.0.q_rot",
    "rope.k-unrotated": "layers.0.k_rot",
    "attention.tiled": "layers.0.attention",
    "mask.one-ahead": "layers.0.attention",
    "block.no-residual": "layers.0.attn_residual",
    "weights.norm-reused": "layers.0.mlp_norm",
    "weights.gate-up-exchanged": "layers.0.gate",
    "mlp.gate-up-swapped": "layers.0.gated",
    "weights.layer-0-everywhere": "layers.1.attn_norm",
    "block.last-layer-unrotated": "layers.1.q_rot",
    "logits.first-norms-weight": "final_norm",
    "weights.tied-although-untied": "logits",
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fault", FIRST)
def test_the_first_arrow_that_is_wrong_is_named(fault, dtype):
    case = replace(CASE, dtype=dtype)
    verdict = judge_taps(taps_of(case, Subject(implementation(fault))), case)
    assert not verdict.passed
    assert verdict.headroom > 1
    assert verdict.measure.startswith(f"{FIRST[fault]}, ")
    assert verdict.reason.startswith(f"{FIRST[fault]} is the first arrow that is wrong")


def test_an_error_made_earlier_is_not_counted_again():
    judged = judge_arrows(taps_of(CASE, Subject(implementation("block.q-biased"))), CASE)
    assert {tap for tap, verdict in judged if not verdict.passed} == {"layers.0.q", "layers.1.q"}


def test_the_headroom_is_the_first_arrows_and_not_the_worst_ones():
    taps = taps_of(CASE)
    taps["layers.0.v"] = taps["layers.0.v"] * 1.001
    taps["logits"] = -taps["logits"]
    judged = judge_arrows(taps, CASE)
    tap, verdict = first_over(judged)
    assert tap == "layers.0.v"
    assert judge_taps(taps, CASE).headroom == verdict.headroom < max(v.headroom for _, v in judged)


def test_where_all_arrows_hold_the_one_with_the_least_room_is_named():
    judged = judge_arrows(taps_of(CASE), CASE)
    tap, tightest = max(judged, key=lambda pair: pair[1].headroom)
    verdict = judge_taps(taps_of(CASE), CASE)
    assert verdict.passed
    assert first_over(judged) is None
    assert (verdict.measure, verdict.headroom) == (f"{tap}, {tightest.measure}", tightest.headroom)
    assert verdict.facts == {"arrows judged": "33 of 33"}


def test_what_is_not_shown_is_said_and_what_starts_from_it_is_judged_from_before():
    taps = taps_of(CASE)
    del taps["layers.1.q_rot"]
    taps["layers.1.rotated"] = taps["layers.1.k_rot"]
    verdict = judge_taps(taps, CASE)
    assert verdict.passed
    assert verdict.facts == {
        "arrows judged": "32 of 33",
        "taps not shown": "layers.1.q_rot",
        "taps of unknown name": "layers.1.rotated",
    }


@pytest.mark.parametrize("shown", [{"layers.1.mlp_residual", "logits"}, {"layers.0.v", "layers.1.attn_out"}])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.spec)
def test_a_few_taps_are_enough_to_judge_what_lies_between_them(case, shown):
    taps = {name: tap for name, tap in taps_of(case).items() if name in shown}
    assert [tap for tap, _ in judge_arrows(taps, case)] == [n for n in names(case) if n in shown]
    assert judge_taps(taps, case).passed


def test_between_two_taps_the_one_behind_the_fault_is_named():
    case = replace(CASE, dtype="float32")
    wrong = taps_of(case, Subject(implementation("block.v-1-percent")))
    shown = {n: t for n, t in wrong.items() if n.endswith(("mlp_residual", "attn_out"))}
    assert first_over(judge_arrows(shown, case))[0] == "layers.0.attn_out"


def test_taps_of_unknown_names_alone_are_unsupported():
    with pytest.raises(Unsupported, match="taps shows hidden: no tap together with what it is computed from"):
        judge_taps({"hidden": oracle_taps(CASE)["logits"].float()}, CASE)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t: t.transpose(1, 2), "shape is [2, 17, 2, 16], expected [2, 2, 17, 16]"),
        (lambda t: t.double(), "dtype is torch.float64, expected torch.float32"),
    ],
)
def test_a_misshapen_tap_fails_even_where_its_input_is_not_shown(change, reason):
    taps = taps_of(CASE)
    taps["layers.1.k"] = change(taps["layers.1.k"])
    for shown in (taps, {n: t for n, t in taps.items() if n != "layers.1.attn_norm"}):
        verdict = judge_taps(shown, CASE)
        assert not verdict.passed
        assert verdict.measure.startswith("layers.1.k, ")
        assert verdict.reason.startswith(f"layers.1.k is the first arrow that is wrong: {reason}")
        assert "layers.1.k_rot" in verdict.facts["taps without their input"]


def test_a_number_that_is_not_finite_is_blamed_on_the_arrow_that_made_it():
    taps = taps_of(CASE, Subject(implementation("norm.nan")))
    verdict = judge_taps(taps, CASE)
    assert verdict.measure == "layers.0.attn_norm, finite"
    assert verdict.facts["arrows judged"] == "2 of 33"
