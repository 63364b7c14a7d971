"""The verdict on taps: each arrow is judged on the implementation's own input.

Oracle and yardsticks of an arrow are computed on the very tensors that the implementation showed. An error
made earlier is then on both sides, and what is left is what this one step adds: the first arrow over its
budget is where an implementation goes wrong.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from conformance.cases import ModelCase
from conformance.implementations.base import Unsupported
from conformance.numerics import answers
from conformance.numerics.arrows import TOKENS, Arrow, Way, arrows
from conformance.numerics.measures import first_dishonest
from conformance.numerics.settings import ORACLE, Setting, yardsticks
from conformance.numerics.verdict import Verdict, budgets, compare, malformed

Taps = Mapping[str, Tensor]
Judged = list[tuple[str, Verdict]]


@functools.lru_cache(maxsize=64)
def oracle_taps(case: ModelCase) -> dict[str, Tensor]:
    """Every tap of the oracle, in causal order."""
    seen: dict[str, Tensor] = {}
    answers.model_of(case, ORACLE)(case.token_ids(), tap=seen.__setitem__)
    return seen


def way(case: ModelCase, setting: Setting) -> Way:
    """A setting as a way to compute arrows: of the weights as written, the sum alone in another order."""
    return Way(model=answers.model_of(case, replace(setting, order=0)), order=setting.order)


def judge_arrows(taps: Taps, case: ModelCase) -> Judged:
    """Judge every arrow whose tap and inputs are shown.

    A tap of another shape or dtype fails, whether its inputs are shown or not, and no arrow is judged that
    starts from it. Nor is one that starts from a number that is not finite: what should follow is not
    defined, and the arrow that led there has been judged.

    Args:
        taps: as Model.taps returns them, for case.token_ids().
        case: whose config, weights and tokens they are of.

    Returns:
        (tap, verdict) in causal order.
    """
    right, dtype = oracle_taps(case.twin), case.torch_dtype
    oracle, accepted = way(case, ORACLE), [way(case, setting) for setting in yardsticks(dtype)]
    usable = {TOKENS: case.token_ids()}
    judged: Judged = []
    for arrow in arrows(case.config):
        if arrow.tap not in taps:
            continue
        tap, want = taps[arrow.tap].detach().cpu(), right[arrow.tap]
        fits = tap.shape == want.shape and tap.dtype == dtype
        if not fits:
            wrong = malformed(tap, want, dtype)
            assert wrong is not None
            judged.append((arrow.tap, wrong))
        elif all(name in usable for name in arrow.inputs):
            judged.append((arrow.tap, judge_arrow(arrow, tap, usable, oracle, accepted)))
        if fits and bool(tap.isfinite().all()):
            usable[arrow.tap] = tap
    return judged


def judge_arrow(arrow: Arrow, tap: Tensor, inputs: Taps, oracle: Way, accepted: list[Way]) -> Verdict:
    """Compare one tap with the oracle's step from the same inputs, against the budget of that step.

    Args:
        arrow: which step.
        tap: what the implementation made of the inputs.
        inputs: the implementation's own, by name.
        oracle, accepted: the ways to compute it; the right one, and those that set the budget.
    """
    want, dtype = arrow.answer(inputs, oracle), tap.dtype
    wrong = malformed(tap, want, dtype)
    if wrong is not None:
        return wrong
    answered = [arrow.answer(inputs, way) for way in arrow.distinct(accepted)]
    together = torch.stack(answered)  # its worst row is the worst of all ways: one measurement does
    overflows = first_dishonest(together, want, dtype) is not None
    return compare(tap, want, dtype, budgets(answered if overflows else [together], want, dtype))


def first_over(judged: Judged) -> tuple[str, Verdict] | None:
    """The first arrow over its budget, in causal order; None where all are within theirs."""
    return next(((tap, verdict) for tap, verdict in judged if not verdict.passed), None)


def judge_taps(taps: Taps, case: ModelCase) -> Verdict:
    """The verdict on all arrows: on the first over its budget, or else on the one with the least room.

    Args:
        taps: as Model.taps returns them, for case.token_ids().
        case: whose config, weights and tokens they are of.

    Raises:
        Unsupported: no tap is shown together with what it is computed from.
    """
    judged = judge_arrows(taps, case)
    if not judged:
        raise Unsupported(
            f"taps shows {listed(taps) or 'nothing'}: no tap together with what it is computed from; "
            "Model.taps lists the names"
        )
    facts = coverage(judged, taps, case)
    over = first_over(judged)
    if over is None:
        tap, verdict = max(judged, key=lambda pair: pair[1].headroom or 0.0)
        return replace(verdict, measure=f"{tap}, {verdict.measure}", facts=facts)
    tap, verdict = over
    others = [name for name, v in judged if not v.passed and name != tap]
    reason = f"{tap} is the first arrow that is wrong: {verdict.reason or 'over budget on its own input'}"
    reason += f"; also wrong: {listed(others)}" if others else ""
    return replace(verdict, measure=f"{tap}, {verdict.measure}", reason=reason, facts=facts)


def coverage(judged: Judged, taps: Taps, case: ModelCase) -> dict[str, str]:
    """What was judged, and what was not because it, or what it starts from, is not shown."""
    names = [arrow.tap for arrow in arrows(case.config)]
    done = {tap for tap, _ in judged}
    missing = {
        "taps not shown": [n for n in names if n not in taps],
        "taps without their input": [n for n in names if n in taps and n not in done],
        "taps of unknown name": [n for n in taps if n not in names],
    }
    return {
        "arrows judged": f"{len(done)} of {len(names)}",
        **{what: listed(which) for what, which in missing.items() if which},
    }


def listed(names: Iterable[str], most: int = 8) -> str:
    """The first names, and how many more there are."""
    names = list(names)
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
