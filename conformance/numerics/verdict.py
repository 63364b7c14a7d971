"""The verdict: whether an error is within what rounding explains.

budget = K · yardstick + floor. The yardstick is the error that the reference itself makes in the same dtype,
the worst over the accepted conventions and reduction orders, on this very case: no tolerance is pasted.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from conformance.cases import Case
from conformance.numerics.measures import MEASURES, first_dishonest, measure
from conformance.numerics.settings import ORACLE, Setting, yardsticks

# The one constant of the tolerance model; measured, see docs/adr/0002-tolerance-model.md.
K = 4.0

Answer = Callable[[Case, Setting], Tensor]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a judgement says.

    Args:
        passed: whether the error is within the budget.
        measure: name of the worst measure, or of the law that was tested.
        error, budget, headroom: of the worst measure; headroom = error / budget, None where nothing could be
            measured.
        coordinate: index of the worst row or element.
        reason: why it failed, in words; "" where the numbers say it all.
        facts: what was seen but not judged.
    """

    passed: bool
    measure: str
    error: float | None = None
    budget: float | None = None
    headroom: float | None = None
    coordinate: tuple[int, ...] = ()
    reason: str = ""
    facts: dict[str, str] = field(default_factory=dict)


def floors(dtype: torch.dtype, width: int) -> dict[str, float]:
    """What even a perfect implementation may be off by: 2 ulp of the row's scale, 2u/sqrt(n) for the gain.

    On top of the gain come 2 ulp of float32: a root, a quotient or a sum taken in float32 errs for all of a
    row at once, and may be written in ways that differ by so much. In 16-bit that is next to nothing.

    Args:
        dtype: of the result.
        width: n, length of a row.
    """
    ulp, shared = torch.finfo(dtype).eps, 2 * torch.finfo(torch.float32).eps
    return dict(zip(MEASURES, (2 * ulp, 2 * ulp, ulp / math.sqrt(width) + shared), strict=True))


@functools.lru_cache(maxsize=512)
def oracle_of(answer: Answer, case: Hashable, setting: Setting = ORACLE) -> Tensor:
    """The oracle's answer to a case, computed once."""
    assert isinstance(case, Case)
    return answer(case, setting)


@functools.lru_cache(maxsize=4096)
def budgets_of(answer: Answer, case: Hashable, oracle_setting: Setting = ORACLE) -> dict[str, float]:
    """The budget of each measure for a case: K · the worst yardstick + floor."""
    assert isinstance(case, Case)
    dtype = case.torch_dtype
    oracle = oracle_of(answer, case, oracle_setting)
    return budgets((answer(case, setting) for setting in yardsticks(dtype)), oracle, dtype)


def budgets(accepted: Iterable[Tensor], oracle: Tensor, dtype: torch.dtype) -> dict[str, float]:
    """The budget of each measure: K · the worst of the accepted answers + floor.

    Args:
        accepted: what the reference gives under the accepted conventions and orders, in dtype.
        oracle: float64.
        dtype: of the answers.
    """
    worst = dict.fromkeys(MEASURES, 0.0)
    for actual in accepted:
        if first_dishonest(actual, oracle, dtype) is not None:
            continue  # a convention that overflows here is no excuse
        errors = measure(actual, oracle, dtype)
        worst = {name: max(worst[name], errors.values[name]) for name in MEASURES}
    floor = floors(dtype, oracle.shape[-1])
    return {name: K * worst[name] + floor[name] for name in MEASURES}


def judge(actual: Tensor, answer: Answer, case: Case, oracle: Setting = ORACLE) -> Verdict:
    """Compare an implementation's answer with the oracle's, against the budget of the case.

    Args:
        actual: what the implementation gave.
        answer: how the reference answers the same question.
        case: the question.
        oracle: the setting that is right; contract angles unless a law is proved with exact ones.

    Returns:
        The verdict on the worst of the three measures.
    """
    want = oracle_of(answer, case.question, oracle)
    wrong = malformed(actual, want, case.torch_dtype)
    if wrong is not None:
        return wrong
    return compare(actual, want, case.torch_dtype, budgets_of(answer, case.question, oracle))


def agree(actual: Tensor, other: Tensor, answer: Answer, case: Case, oracle: Setting = ORACLE) -> Verdict:
    """Compare two answers of one implementation that a law says are equal, within two budgets of the case.

    Each answer may be off by one. A law isolates: an implementation that rotates wrongly, but the same with a
    cache as without, keeps it.

    Args:
        actual, other: the two answers.
        answer: how the reference answers the question, for the budget.
        case: the question.
        oracle: as for judge.
    """
    want = other.detach().cpu().to(torch.float64)
    if not bool(want.isfinite().all()):
        return Verdict(passed=False, measure="finite", reason="the answer to compare with is not finite")
    wrong = malformed(actual, want, case.torch_dtype)
    if wrong is not None:
        return wrong
    one = budgets_of(answer, case.question, oracle)
    return compare(actual, want, case.torch_dtype, {name: 2 * value for name, value in one.items()})


def malformed(actual: Tensor, want: Tensor, dtype: torch.dtype) -> Verdict | None:
    """The verdict on a wrong shape, a wrong dtype or a dishonest non-finite number; None if all is well."""
    if tuple(actual.shape) != tuple(want.shape):
        reason = f"shape is {list(actual.shape)}, expected {list(want.shape)}"
        return Verdict(passed=False, measure="shape", reason=reason)
    if actual.dtype != dtype:
        reason = f"dtype is {actual.dtype}, expected {dtype}: the weights and inputs were {dtype}"
        return Verdict(passed=False, measure="dtype", reason=reason)
    at = first_dishonest(actual.detach().cpu(), want, dtype)
    if at is not None:
        value = float(actual[at])
        reason = f"{value} where the oracle has {float(want[at]):.6g}, which {dtype} can hold"
        return Verdict(passed=False, measure="finite", coordinate=at, reason=reason)
    return None


def compare(actual: Tensor, want: Tensor, dtype: torch.dtype, allowed: dict[str, float]) -> Verdict:
    """The verdict on a well-formed answer, by the measure with the least headroom left."""
    errors = measure(actual.detach().cpu(), want, dtype)
    headroom = {name: errors.values[name] / allowed[name] for name in MEASURES}
    worst = max(MEASURES, key=lambda name: headroom[name])
    return Verdict(
        passed=headroom[worst] <= 1,
        measure=worst,
        error=errors.values[worst],
        budget=allowed[worst],
        headroom=headroom[worst],
        coordinate=errors.coordinates[worst],
    )


def exact(passed: bool, measure: str, reason: str, coordinate: tuple[int, ...] = ()) -> Verdict:
    """The verdict of a check that has no tolerance: a law to the bit, an error that must be raised."""
    return Verdict(
        passed=passed,
        measure=measure,
        reason="" if passed else reason,
        coordinate=() if passed else coordinate,
    )


def unchanged(call: Callable[..., object], **inputs: Tensor) -> Verdict:
    """The verdict on a call that must leave its inputs as they were, to the bit.

    Args:
        call: takes the inputs by position.
        inputs: by the name that a failure is to show.
    """
    before = {name: value.clone() for name, value in inputs.items()}
    call(*inputs.values())
    touched = [name for name, value in inputs.items() if not torch.equal(before[name], value)]
    return exact(not touched, "inputs unchanged", f"{', '.join(touched)} changed during the call")


def without_memory(ask: Callable[[Case], Tensor], answer: Answer, case: Case, *others: Case) -> list[Verdict]:
    """The verdicts on a case that is asked first, and last again behind others: right, and the same bits.

    Args:
        ask: what the implementation gives on a case.
        answer: how the reference answers it.
        case: the one that is asked twice.
        others: what is asked between; of another dtype they are asked alone, for it may not be offered.
    """
    first, verdicts = ask(case).clone(), []
    for other in others:
        if other.dtype == case.dtype:
            verdicts.append(judge(ask(other), answer, other))
        else:
            with contextlib.suppress(Exception):
                ask(other)
    again = ask(case)
    verdicts += [judge(first, answer, case)]
    at = None if torch.equal(first, again) else first_other(first, again)
    return [*verdicts, exact(at is None, "the same bits", "other bits after other inputs", at or ())]


def first_other(one: Tensor, other: Tensor) -> tuple[int, ...]:
    """Index of the first element in which two tensors differ; () where their shapes do."""
    if one.shape != other.shape:
        return ()
    return tuple(int(i) for i in (one != other).nonzero()[0])


def worst_of(*verdicts: Verdict) -> Verdict:
    """The one that matters most: a failure first, then the least room."""
    return max(
        verdicts,
        key=lambda v: (not v.passed, math.inf if v.headroom is None and not v.passed else v.headroom or 0.0),
    )
