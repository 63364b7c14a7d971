"""Cases of single ops: views of memory, many tokens, large gates; and what is said of inputs and memory."""

from dataclasses import replace
from typing import get_args

import pytest
import torch

from conformance import EXACT_ORACLE, answers, judge, unchanged, without_memory
from conformance.cases import AttentionCase, GateCase, LongAttentionCase, NormCase, PeakCase, RotateCase
from conformance.inputs import FILLER, Layout, laid_out

VIEWS = [layout for layout in get_args(Layout) if layout not in {"contiguous", "expanded"}]
CASES = [NormCase(sequences=2), GateCase(), GateCase(sequences=2), RotateCase(), AttentionCase(past=7)]
DTYPES = ("float32", "bfloat16", "float16")


def random(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("layout", VIEWS)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.spec)
def test_a_view_holds_the_same_numbers_in_another_order_of_memory(case, layout):
    for plain, view in zip(case.inputs(), replace(case, layout=layout).inputs(), strict=True):
        assert torch.equal(plain, view)
    assert not replace(case, layout=layout).inputs()[0].is_contiguous()


@pytest.mark.parametrize("layout", VIEWS)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.spec)
def test_a_view_asks_the_same_question(case, layout):
    assert replace(case, layout=layout).question == case.question


def test_heads_and_tokens_lie_in_memory_as_a_projection_leaves_them():
    assert laid_out(random(2, 6, 5, 8), "transposed").transpose(1, 2).is_contiguous()


def test_beside_a_slice_stand_numbers_that_show():
    view = laid_out(random(3, 8), "sliced")
    assert view.stride() == (16, 1)
    assert float(view.as_strided((1,), (1,), storage_offset=0)) == FILLER


def test_gate_and_up_are_halves_of_one_tensor():
    gate, up = GateCase(layout="sliced").inputs()
    assert gate.untyped_storage().data_ptr() == up.untyped_storage().data_ptr()


def test_expanded_keys_are_one_row_for_the_whole_batch():
    q, k, v = AttentionCase(batch=3, layout="expanded").inputs()
    assert q.is_contiguous()
    assert (k.stride(0), v.stride(0)) == (0, 0)


def test_expanded_keys_are_another_question():
    case = AttentionCase(layout="expanded")
    assert case.question == case


@pytest.mark.parametrize("dtype", DTYPES)
def test_many_tokens_are_answered_for_the_queries_that_are_compared(dtype):
    case = LongAttentionCase(dtype=dtype, tokens=200, kv_heads=2, heads=4)
    asked = answers.long_attention(case, EXACT_ORACLE)
    whole = answers.attention_core(case, EXACT_ORACLE)
    assert torch.equal(case.places()[[0, -1]], torch.tensor([0, 199]))
    torch.testing.assert_close(asked, whole[:, :, case.places()], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("dtype", "peak"), [("float16", 6e4), ("float32", 1e6), ("bfloat16", 1e6)])
def test_a_peak_is_reached_and_not_passed(dtype, peak):
    case = PeakCase(dtype=dtype, variant="llama-2-7b", regime="quiet", batch=1, tokens=21, peak=peak)
    x, weights = case.hidden().double(), case.weights()
    gate, up = (x @ weights[f"model.layers.0.mlp.{n}_proj.weight"].double().T for n in ("gate", "up"))
    assert 0.85 * peak < float((gate * up).abs().max()) < 0.95 * peak
    assert bool(case.hidden().isfinite().all())


def test_what_was_changed_is_named():
    verdict = unchanged(lambda x, y: y.add_(x), x=torch.ones(2), y=torch.ones(2))
    assert (verdict.passed, verdict.reason) == (False, "y changed during the call")


def asked_with(change):
    """Without memory but for what change makes of the right answer to the n-th question."""
    calls = []

    def ask(case):
        calls.append(case)
        return change(len(calls), answers.silu_mul(case, EXACT_ORACLE).to(case.torch_dtype))

    case = GateCase()
    others = (replace(case, dtype="bfloat16"), replace(case, seed=1))
    return without_memory(ask, answers.silu_mul, case, *others)


def test_the_same_bits_first_and_last_are_no_memory():
    assert all(v.passed for v in asked_with(lambda _n, y: y))


def test_a_single_bit_that_differs_at_last_is_memory():
    def last(n, y):
        return torch.nextafter(y, torch.tensor(torch.inf)) if n == 4 else y

    *judged, same = asked_with(last)
    assert all(v.passed for v in judged)
    assert (same.passed, same.coordinate) == (False, (0, 0))


def test_a_wrong_answer_to_another_question_between_is_memory():
    assert [v.passed for v in asked_with(lambda n, y: y * 2 if n == 3 else y)] == [False, True, True]


def test_another_dtype_between_may_be_refused():
    def refusing(n, y):
        if n == 2:
            raise TypeError
        return y

    assert all(v.passed for v in asked_with(refusing))


@pytest.mark.parametrize(
    ("value", "holds"), [(torch.inf, True), (65504.0, True), (3e4, False), (-torch.inf, False)]
)
def test_where_a_product_overflows_the_verdict_takes_infinity_and_no_small_number(value, holds):
    case = GateCase(dtype="float16", pattern="constant", up_pattern="constant", scale=300.0, up_scale=300.0)
    y = torch.full((case.rows, case.width), value, dtype=torch.float16)
    assert judge(y, answers.silu_mul, case).passed is holds
