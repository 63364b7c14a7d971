"""The tolerance model: three measures on tensors made by hand, budgets, and what a verdict refuses."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.cases import AttentionCase, GateCase, ModelCase, NormCase, RotateCase, TableCase
from conformance.checks import Selection
from conformance.inputs import DTYPES, PATTERNS
from conformance.numerics import answers
from conformance.numerics.measures import MEASURES, first_dishonest, measure
from conformance.numerics.power import require_power
from conformance.numerics.settings import (
    CAST_THEN_WEIGHT,
    CONVENTIONS,
    EXACT_ORACLE,
    ORACLE,
    SCALE_BOTH,
    SCALE_FIRST,
    Setting,
    yardsticks,
)
from conformance.numerics.tables import (
    INV_FREQ_ULP,
    READ_AT,
    frequencies_at_one,
    half_width,
    judge_inv_freq,
    judge_tables,
)
from conformance.numerics.verdict import (
    K,
    Verdict,
    budgets_of,
    compare,
    exact,
    floors,
    judge,
    oracle_of,
    worst_of,
)
from conformance.variants import variants
from conformance.weights import make_weights, permute_jointly
from reference_impl import Llama
from reference_impl.rope import inv_freq, tables

RMS, WORST, GAIN = MEASURES
# A case for every answer; the first two settings of dtype and pattern vary.
QUESTIONS = {
    answers.rms_norm: NormCase,
    answers.silu_mul: GateCase,
    answers.apply_rope: RotateCase,
    answers.unrotated: RotateCase,
    answers.rotated_scores: RotateCase,
    answers.rotated_lengths: RotateCase,
    answers.attention_core: AttentionCase,
    answers.logits: ModelCase,
    answers.attention_module: ModelCase,
    answers.shifted_attention_module: ModelCase,
    answers.mlp: ModelCase,
    answers.block: ModelCase,
}
each_question = pytest.mark.parametrize(
    ("answer", "case"), [(a, c()) for a, c in QUESTIONS.items()], ids=[a.__name__ for a in QUESTIONS]
)
each_dtype = pytest.mark.parametrize("dtype", DTYPES)


def noise(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def errors(y, oracle, dtype=torch.float32):
    return measure(y, oracle, dtype).values


# Measures.


def test_a_right_answer_has_no_error():
    o = noise(4, 32).float().double()
    assert errors(o.float(), o) == dict.fromkeys(MEASURES, 0.0)


def test_a_row_one_percent_too_large_has_that_gain():
    o = noise(4, 32)
    y = o.clone()
    y[2] *= 1.01
    got = measure(y, o, torch.float32)
    assert got.values[GAIN] == pytest.approx(0.01)
    assert got.values[RMS] == pytest.approx(0.01)
    assert got.coordinates[GAIN] == got.coordinates[RMS] == (2,)


def test_in_bfloat16_a_gain_of_one_percent_shows_in_the_gain_alone():
    """Rounding hides it from the other two: each element is off by no more than it may be."""
    o = noise(4, 4096).to(torch.bfloat16).double()
    budgets = {name: 4 * e + floors(torch.bfloat16, 4096)[name] for name, e in rounding(o).items()}
    wrong = (o * 1.01).to(torch.bfloat16)
    over = {name for name, e in errors(wrong, o, torch.bfloat16).items() if e > budgets[name]}
    assert over == {GAIN}


def rounding(o):
    """The errors of an answer that is rounded to bfloat16 twice on the way."""
    return errors(((o * 0.7).to(torch.bfloat16).double() / 0.7).to(torch.bfloat16), o, torch.bfloat16)


def test_one_element_shows_in_the_worst_element():
    o = noise(4, 4096)
    y = o.clone()
    y[3, 17] += 0.5
    got = measure(y, o, torch.float32)
    assert got.coordinates[WORST] == (3, 17)
    assert got.values[WORST] == pytest.approx(0.5, rel=0.05)
    assert got.values[RMS] < 0.01


def test_one_loud_row_does_not_hide_another():
    o = noise(4, 32)
    o[0] *= 1e4
    y = o.clone()
    y[3] *= 1.02
    got = measure(y, o, torch.float32)
    assert got.coordinates[RMS] == (3,)
    assert got.values[RMS] == pytest.approx(0.02)
    globally = (y - o).norm() / o.norm()
    assert globally < 1e-4


def test_a_rotated_row_has_an_error_but_no_gain():
    o = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    got = errors(torch.tensor([[1.0, 0.1]]), o)
    assert got[RMS] == pytest.approx(0.1)
    assert got[GAIN] < 1e-7


def test_measures_do_not_depend_on_the_scale_of_a_row():
    o, e = noise(4, 32), noise(4, 32, seed=1) * 1e-3
    for scale in (1e-6, 1.0, 1e6):
        assert errors(scale * (o + e), scale * o) == pytest.approx(errors(o + e, o))


def test_a_zero_row_may_only_be_zero():
    o = torch.zeros(2, 8, dtype=torch.float64)
    assert errors(torch.zeros(2, 8), o) == dict.fromkeys(MEASURES, 0.0)
    wrong = torch.zeros(2, 8)
    wrong[1, 3] = 1e-6
    assert not compare(wrong, o, torch.float32, floors(torch.float32, 8)).passed


@each_dtype
def test_subnormal_rows_may_be_rounded_but_not_flushed(dtype):
    dtype = DTYPES[dtype]
    o = noise(3, 64) * torch.finfo(dtype).smallest_normal / 16
    floor = floors(dtype, 64)
    assert compare(o.to(dtype), o, dtype, floor).passed
    flushed = compare(torch.zeros(3, 64, dtype=dtype), o, dtype, floor)
    assert not flushed.passed
    assert flushed.headroom > 10


# What is not finite.


@each_question
def test_a_nan_fails_whatever_the_oracle_is(answer, case):
    y = oracle_of(answer, case).float()
    y[(0,) * y.ndim] = torch.nan
    verdict = judge(y, answer, case)
    assert not verdict.passed
    assert verdict.measure == "finite"
    assert verdict.coordinate == (0,) * y.ndim
    assert "nan where the oracle has" in verdict.reason


def test_an_honest_overflow_is_accepted():
    o = noise(2, 8)
    o[1, 3], o[1, 5] = 1e6, -1e6
    y = o.to(torch.float16)
    assert first_dishonest(y, o, torch.float16) is None
    assert compare(y, o, torch.float16, floors(torch.float16, 8)).passed


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_another_value_than_the_overflow_is_dishonest(value):
    o = noise(2, 8)
    o[1, 3] = -1e6
    y = o.to(torch.float16)
    y[1, 3] = value
    assert first_dishonest(y, o, torch.float16) == (1, 3)


def test_infinity_is_dishonest_where_the_dtype_can_hold_the_answer():
    o = noise(2, 8)
    o[0, 2] = 6e4
    y = o.to(torch.float16)
    assert first_dishonest(y, o, torch.float16) is None
    y[0, 2] = torch.inf
    assert first_dishonest(y, o, torch.float16) == (0, 2)
    assert first_dishonest(o.to(torch.bfloat16), o * 1e30, torch.bfloat16) is None


def test_a_small_number_where_the_oracle_overflows_is_an_error():
    o = torch.full((2, 8), 1e6, dtype=torch.float64)
    floor = floors(torch.float16, 8)
    assert compare(torch.full((2, 8), 65504.0).half(), o, torch.float16, floor).passed
    assert not compare(torch.zeros(2, 8).half(), o, torch.float16, floor).passed


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_yardstick_that_overflows_widens_no_budget(value):
    """One convention may overflow in float16 where another does not: the others set the budget."""

    def overflowing(case, setting):
        y = answers.rms_norm(case, setting)
        if (setting.dtype, setting.ops) == (torch.float16, CONVENTIONS[0]):
            y[0, 0] = value
        return y

    case = NormCase(dtype="float16")
    budgets, allowed = budgets_of(overflowing, case), budgets_of(answers.rms_norm, case)
    assert all(0 < budgets[name] <= allowed[name] for name in MEASURES)


# Budgets.


@each_dtype
@pytest.mark.parametrize("kind", [NormCase, GateCase, RotateCase, AttentionCase])
def test_budgets_are_positive_small_and_finite_on_every_pattern(kind, dtype):
    answer = next(a for a, c in QUESTIONS.items() if c is kind)
    ulp = torch.finfo(DTYPES[dtype]).eps
    for pattern in (*PATTERNS, "zero"):
        budgets = budgets_of(answer, kind(dtype=dtype, pattern=pattern))
        assert set(budgets) == set(MEASURES)
        assert all(ulp / 100 < b < 200 * ulp for b in budgets.values()), (pattern, budgets)


@each_question
def test_every_yardstick_is_itself_within_the_budget(answer, case):
    for dtype in DTYPES:
        asked = replace(case, dtype=dtype)
        for setting in yardsticks(DTYPES[dtype])[::3]:
            verdict = judge(answer(asked, setting), answer, asked)
            assert verdict.passed
            assert verdict.headroom <= 1 / K


def test_floors_are_two_ulp_and_shrink_with_the_width_for_the_gain_alone():
    ulp, shared = 2.0**-7, 2.0**-22  # a root taken in float32 errs for a whole row
    assert floors(torch.bfloat16, 64) == {RMS: 2 * ulp, WORST: 2 * ulp, GAIN: ulp / 8 + shared}


def by_division(case):
    x, weight = case.inputs()
    wide = x.float()
    return (wide / torch.sqrt(wide.pow(2).mean(-1, keepdim=True) + case.eps)).to(x.dtype) * weight


def one_by_one(case):
    x, weight = case.inputs()
    wide, total = x.float(), torch.zeros(x.shape[0])
    for column in wide.unbind(-1):
        total = total + column * column
    return weight * (wide * torch.rsqrt(total[:, None] / x.shape[-1] + case.eps)).to(x.dtype)


@pytest.mark.parametrize("norm", [by_division, one_by_one])
def test_a_right_norm_written_in_another_way_is_within_every_budget(checks, norm):
    for check in (c for c in checks if c.requirement.startswith("NORM") and "row" not in c.title):
        for case in check.covering(Selection(profile="quick")):
            if isinstance(case, NormCase) and case.dtype == "float32":
                assert judge(norm(case), answers.rms_norm, case).passed, (check.title, case)


@pytest.mark.parametrize("write", [lambda z: z * torch.sigmoid(z), lambda z: z / (1 + torch.exp(-z))])
def test_a_right_silu_written_in_another_way_is_within_every_budget(checks, write):
    for check in (c for c in checks if c.requirement in {"MLP-1", "MLP-2"}):
        for case in check.covering(Selection(profile="quick")):
            if isinstance(case, GateCase) and case.dtype == "float32":
                gate, up = case.inputs()
                assert judge(write(gate) * up, answers.silu_mul, case).passed, (check.title, case)


@each_dtype
def test_yardsticks_are_every_convention_in_several_orders(dtype):
    found = yardsticks(DTYPES[dtype])
    in_float32 = (CAST_THEN_WEIGHT, SCALE_FIRST, SCALE_BOTH)
    conventions = in_float32 if dtype == "float32" else CONVENTIONS
    assert {s.ops for s in found} == set(conventions)
    assert sum(s.ops == conventions[0] for s in found) >= 2
    assert {s.dtype for s in found} == {DTYPES[dtype]}
    assert {s.angles for s in found} == {"contract"}


@pytest.mark.parametrize("seed", [300, 7])
@pytest.mark.parametrize("where", [SCALE_FIRST, SCALE_BOTH])
def test_whoever_scales_queries_before_the_product_is_within_the_budget(where, seed):
    """Found by the soak: scores in the hundreds at a head width whose root is no power of two."""
    case = AttentionCase(
        seed=seed, batch=1, kv_heads=6, head_dim=32, tokens=38, past=7, pattern="outlier", gain=10.0
    )
    y = answers.attention_core(case, Setting(dtype=torch.float32, ops=where))
    assert judge(y, answers.attention_core, case).headroom < 0.6


@pytest.mark.parametrize("name", ["llama-2-7b", "llama-3.1-8b", "llama-3.2-1b"])
def test_a_joint_permutation_is_the_same_function(name):
    config = replace(variants([name])[0].shape("gqa"), attention_bias=True, mlp_bias=True)
    weights = make_weights(config, 5, "loud", torch.float64)
    row = torch.arange(20)[None]
    want = Llama(config, weights, dtype=torch.float64)(row)
    for order in (1, 2, 3):
        permuted = permute_jointly(config, weights, order)
        assert permuted.keys() == weights.keys()
        assert not torch.equal(permuted["model.embed_tokens.weight"], weights["model.embed_tokens.weight"])
        y = Llama(config, permuted, dtype=torch.float64)(row)
        assert float((y - want).abs().max() / want.abs().max()) < 1e-12


@each_question
def test_every_order_asks_the_same_in_float64(answer, case):
    want = oracle_of(answer, case)
    for order in (1, 2, 3):
        y = answer(case, Setting(dtype=torch.float64, order=order))
        assert float((y - want).abs().max() / want.abs().max()) < 1e-12


@pytest.mark.parametrize(
    ("answer", "case"),
    [
        (answers.rms_norm, NormCase(n=1024, rows=64)),
        (answers.attention_core, AttentionCase()),
        (answers.mlp, ModelCase()),
        (answers.logits, ModelCase()),
    ],
)
def test_another_order_rounds_otherwise(answer, case):
    one, other = (answer(case, Setting(dtype=torch.float32, order=order)) for order in (0, 1))
    assert not torch.equal(one, other)


# Verdicts.


@each_question
@each_dtype
def test_zeros_fail_for_every_answer(answer, case, dtype):
    asked = replace(case, dtype=dtype)
    zeros = torch.zeros_like(oracle_of(answer, asked.question)).to(DTYPES[dtype])
    verdict = judge(zeros, answer, asked)
    assert not verdict.passed
    assert verdict.headroom > 10


@each_question
def test_the_oracle_rounded_once_passes(answer, case):
    for dtype in DTYPES:
        asked = replace(case, dtype=dtype)
        assert judge(oracle_of(answer, asked).to(DTYPES[dtype]), answer, asked).passed


@each_question
def test_another_shape_or_dtype_is_refused(answer, case):
    y = oracle_of(answer, case).float()
    shape = judge(y[:1, ..., :1], answer, case)
    assert (shape.passed, shape.measure, shape.headroom) == (False, "shape", None)
    assert shape.reason.startswith("shape is [1, ")
    assert f"expected {list(y.shape)}" in shape.reason
    dtype = judge(y.double(), answer, case)
    assert (dtype.passed, dtype.measure) == (False, "dtype")
    assert dtype.reason.startswith("dtype is torch.float64, expected torch.float32")


def test_a_broadcastable_shape_is_refused():
    case = NormCase(rows=1)
    y = oracle_of(answers.rms_norm, case).float()
    assert judge(y[0], answers.rms_norm, case).measure == "shape"
    assert judge(y[None], answers.rms_norm, case).measure == "shape"


def test_a_verdict_carries_the_worst_measure_and_where_it_is():
    case = NormCase(rows=4, n=576)
    y = oracle_of(answers.rms_norm, case).float()
    y[2, 100] += 1
    verdict = judge(y, answers.rms_norm, case)
    assert (verdict.passed, verdict.measure, verdict.coordinate) == (False, WORST, (2, 100))
    assert verdict.headroom == pytest.approx(verdict.error / verdict.budget)
    assert verdict.budget == budgets_of(answers.rms_norm, case)[WORST]


@settings(max_examples=30, deadline=None, database=None, derandomize=True)
@given(ratio=st.floats(0.01, 100).filter(lambda r: abs(r - 1) > 1e-6), at=st.sampled_from(MEASURES))
def test_the_line_is_a_headroom_of_one(ratio, at):
    o = noise(3, 16)
    y = o + 0.01 * noise(3, 16, seed=1)
    budgets = {name: e * (1 / ratio if name == at else 1000) for name, e in errors(y, o).items()}
    verdict = compare(y, o, torch.float32, budgets)
    assert verdict.measure == at
    assert verdict.passed == (verdict.headroom <= 1) == (ratio <= 1)


def test_an_exact_verdict_says_why_only_where_it_fails():
    assert exact(True, "refusal", "why", (1,)) == Verdict(passed=True, measure="refusal")
    failed = exact(False, "refusal", "why", (1,))
    assert (failed.reason, failed.coordinate, failed.headroom) == ("why", (1,), None)


def test_the_worst_verdict_is_a_failure_first_then_the_least_room():
    law = exact(False, "law", "broken")
    kept = exact(True, "law", "")
    wide, tight = (Verdict(passed=True, measure="rms", headroom=h) for h in (0.1, 0.9))
    over = Verdict(passed=False, measure="rms", headroom=3.0)
    for order in itertools.permutations([wide, tight, kept]):
        assert worst_of(*order) is tight
    for order in itertools.permutations([wide, tight, kept, over]):
        assert worst_of(*order) is over
    for order in itertools.permutations([tight, law, over]):
        assert worst_of(*order) is law


# Oracles.


def test_the_oracle_of_the_laws_has_exact_angles():
    case = RotateCase(start=8190)
    contract, right = (oracle_of(answers.apply_rope, case, s) for s in (ORACLE, EXACT_ORACLE))
    assert 1e-6 < float((contract - right).abs().max()) < 1e-2
    assert contract.dtype == right.dtype == torch.float64


def test_cases_that_differ_in_chunks_or_in_the_variants_name_alone_share_an_oracle():
    whole = ModelCase(variant="llama-2-7b", tokens=35)
    chunked = replace(whole, chunks=(5, 30))
    assert ModelCase(variant="llama-2-70b").config == whole.config
    for same in (chunked, replace(whole, variant="llama-2-70b"), replace(chunked, variant="llama-2-70b")):
        assert same.question == whole.question
    for other in (replace(whole, seed=1), replace(whole, regime="quiet"), replace(whole, dtype="float16")):
        assert other.question != whole.question


def test_power_is_proved_where_it_is_and_refused_where_it_is_not():
    require_power(ModelCase(tokens=35, chunks=(5, 1, 29)))
    with pytest.raises(ValueError, match="has no power: positions restarted stay within the budget"):
        require_power(ModelCase(tokens=35, chunks=(35,)))


# Tables.


def right_tables(case, positions=None, dtype=torch.float32):
    config = case.config
    return tables(
        inv_freq(config.rope, config.head_dim),
        case.positions() if positions is None else positions,
        dtype,
    )


AT_ONE = torch.tensor([1])


@pytest.mark.parametrize("variant", [v.name for v in Selection().variants])
def test_the_contracts_own_tables_pass_to_the_bit(variant):
    case = TableCase(variant=variant, start=3, stride=4095, tokens=33)
    verdict = judge_tables(*right_tables(case), right_tables(case, torch.tensor(READ_AT)), case)
    assert verdict.passed
    assert verdict.facts == {"identical to the float32 chain to the bit": "yes"}
    assert judge_inv_freq(*right_tables(case, AT_ONE), case).headroom < 1 / 4


def test_a_table_of_full_width_repeats_its_half():
    t = noise(5, 8)
    assert torch.equal(half_width(torch.cat([t, t], -1), 16), t)
    assert half_width(t, 16) is t
    with pytest.raises(ValueError, match="the two halves of the table differ"):
        half_width(t.repeat_interleave(2, dim=-1), 16)
    with pytest.raises(ValueError, match="table has width 8, expected 16 or 32"):
        half_width(t, 32)


def test_frequencies_are_read_back_to_an_ulp():
    config = TableCase().config
    want = inv_freq(config.rope, config.head_dim)
    got = frequencies_at_one(want.cos()[None], want.sin()[None])
    assert float(((got - want) / want).abs().max()) < 1.2e-7


@pytest.mark.parametrize(
    ("change", "passes"),
    [
        (lambda f, _c: f, True),
        (lambda _f, c: inv_freq(c.rope, c.head_dim, torch.float64), True),
        (lambda f, _c: f * (1 + 2 * INV_FREQ_ULP * 2**-23), False),
        (lambda f, _c: f.to(torch.bfloat16), False),
        (lambda f, _c: f * 0, False),
        (lambda f, _c: f * torch.nan, False),
        (lambda f, _c: torch.cat([f[:-1], f[-1:] * 8]), False),
    ],
    ids=["contract", "float64", "16 ulp", "bfloat16", "zero", "nan", "last pair unscaled"],
)
def test_frequencies_are_judged_in_ulp(change, passes):
    case = TableCase()
    config = case.config
    frequencies = change(inv_freq(config.rope, config.head_dim), config).double()
    verdict = judge_inv_freq(frequencies.cos()[None].float(), frequencies.sin()[None].float(), case)
    assert verdict.passed == passes
    assert bool(verdict.reason) != passes


def test_tables_are_not_compared_with_exact_angles():
    """Far out the float32 product is off by far more than rounding: being exact is not the contract."""
    case = TableCase(start=131_000, tokens=5)
    config = case.config
    frequencies = inv_freq(config.rope, config.head_dim, torch.float64)
    exactly = tables(frequencies, case.positions(), torch.float32)
    contract = right_tables(case)
    assert float((exactly[0] - contract[0]).abs().max()) > 1e-3
    assert judge_tables(*contract, right_tables(case, torch.tensor(READ_AT)), case).passed


@pytest.mark.parametrize(
    "wrong",
    [
        lambda cos, sin: (sin, cos),
        lambda cos, sin: (cos, -sin),
        lambda cos, sin: (cos * 0, sin * 0),
        lambda cos, sin: (cos.to(torch.bfloat16).float(), sin),
        lambda cos, sin: (cos.roll(1, 0), sin.roll(1, 0)),
        lambda cos, sin: (cos.double(), sin.double()),
        lambda cos, sin: (cos[:-1], sin[:-1]),
    ],
    ids=["swapped", "backwards", "zero", "bfloat16", "row late", "float64", "row missing"],
)
def test_wrong_tables_fail(wrong):
    case = TableCase(start=8190, tokens=5)
    verdict = judge_tables(*wrong(*right_tables(case)), right_tables(case, torch.tensor(READ_AT)), case)
    assert not verdict.passed


@pytest.mark.parametrize("variant", [v.name for v in Selection().variants])
def test_tables_of_frequencies_rounded_from_float64_are_right_too(variant):
    """An ulp from the chain, and its product with the position rounded elsewhere."""
    for start, stride, tokens in ((0, 1, 65), (8190, 1, 5), (3, 4095, 33)):
        case = TableCase(variant=variant, start=start, stride=stride, tokens=tokens)
        own = inv_freq(case.config.rope, case.config.head_dim, torch.float64).float()
        made = [tables(own, places, torch.float32) for places in (case.positions(), torch.tensor(READ_AT))]
        assert judge_inv_freq(*tables(own, AT_ONE, torch.float32), case).passed
        assert judge_tables(*made[0], made[1], case).passed
