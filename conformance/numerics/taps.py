"""The verdict on taps: each arrow is judged on the implementation's own input.

Oracle and yardsticks of an arrow are computed on the very tensors that the implementation showed. An error
made earlier is then on both sides, and what is left is what this one step adds: the first arrow over its
budget is where an implementation goes wrong.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from conformance.cases import ModelCase
from conformance.implementations.base import Unsupported
from conformance.numerics import answers
from conformance.numerics.arrows import STREAM, TOKENS, Arrow, Way, arrows, distinct
from conformance.numerics.measures import first_dishonest
from conformance.numerics.settings import ORACLE, Setting, yardsticks
from conformance.numerics.verdict import Verdict, budgets, compare, malformed
from reference_impl import LlamaConfig

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


def ways(case: ModelCase) -> tuple[Way, list[Way]]:
    """The oracle, and every accepted way to compute in the dtype of a case."""
    return way(case, ORACLE), [way(case, setting) for setting in yardsticks(case.torch_dtype)]


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A tap that was judged.

    Args:
        arrow: that led to it.
        verdict: on what this step added to the error.
        want: the oracle's step on the implementation's own input; None where there was none to judge by.
        through: taps on the way that were not shown, so that their steps were judged together with this one.
    """

    arrow: Arrow
    verdict: Verdict
    want: Tensor | None = None
    through: tuple[str, ...] = ()


class Follower:
    """Judges taps as they are shown, and forgets a layer when it is over: memory holds a few layers.

    A tap of another shape or dtype fails, and no arrow is judged that starts from it. Nor is one that starts
    from a number that is not finite: what should follow is not defined, and the arrow that led there has been
    judged. What starts from a tap that is not shown is judged from the last ones that were, in one step.

    Args:
        config: whose arrows.
        tokens_BT: of the pass.
        dtype: of the implementation.
        right: tap → its shape.
        oracle, accepted: the ways to compute an arrow; the right one, and those that set the budget.
    """

    def __init__(
        self,
        config: LlamaConfig,
        tokens_BT: Tensor,
        dtype: torch.dtype,
        right: Callable[[str], Tensor],
        oracle: Way,
        accepted: list[Way],
    ) -> None:
        self._arrows = {arrow.tap: arrow for arrow in arrows(config)}
        self._own: dict[str, Tensor] = {TOKENS: tokens_BT}
        self._broken: set[str] = set()
        self._dtype, self._right = dtype, right
        self._oracle, self._accepted = oracle, accepted

    def see(self, name: str, value: Tensor) -> Seen | None:
        """Judge a tap; None where it has another name, or nothing that it follows from was shown."""
        arrow = self._arrows.get(name)
        if arrow is None:
            return None
        tap, want = value.detach().cpu(), self._right(name)
        fits = tap.shape == want.shape and tap.dtype == self._dtype
        seen: Seen | None = None
        if not fits:
            wrong = malformed(tap, want, self._dtype)
            assert wrong is not None
            seen = Seen(arrow=arrow, verdict=wrong)
        elif (through := self._through(arrow)) is not None:
            seen = self._judge(arrow, tap, through)
        if fits and bool(tap.isfinite().all()):
            self._own[name] = tap
        else:
            self._broken.add(name)
        if name.endswith(STREAM):
            self._forget(name)
        return seen

    def _through(self, arrow: Arrow) -> tuple[Arrow, ...] | None:
        """The arrows before this one whose taps were not shown; None where they start from nothing shown."""
        hidden: dict[str, Arrow] = {}
        for name in arrow.inputs:
            if name in self._own:
                continue
            before = self._arrows.get(name)
            if before is None or name in self._broken:
                return None
            further = self._through(before)
            if further is None:
                return None
            hidden |= {a.tap: a for a in (*further, before)}
        return tuple(hidden.values())

    def _judge(self, arrow: Arrow, tap: Tensor, through: tuple[Arrow, ...]) -> Seen:
        def answer(way: Way) -> Tensor:
            given = dict(self._own)
            for hidden in through:
                given[hidden.tap] = hidden.answer(given, way)
            return arrow.answer(given, way)

        want, dtype = answer(self._oracle), self._dtype
        verdict = malformed(tap, want, dtype)
        if verdict is None:
            answered = [answer(way) for way in distinct((*through, arrow), self._accepted)]
            together = torch.stack(answered)  # its worst row is the worst of all ways: one measurement does
            overflows = first_dishonest(together, want, dtype) is not None
            allowed = budgets(answered if overflows else [together], want, dtype)
            verdict = compare(tap, want, dtype, allowed)
        return Seen(arrow=arrow, verdict=verdict, want=want, through=tuple(a.tap for a in through))

    def _forget(self, stream: str) -> None:
        """Drop what came before a layer's end: what follows starts from there."""
        self._own = {name: tap for name, tap in self._own.items() if name == stream}
        self._broken &= {stream}


def judge_arrows(taps: Taps, case: ModelCase) -> Judged:
    """Judge every arrow whose tap is shown, each on the implementation's own input.

    Args:
        taps: as Model.taps returns them, for case.token_ids().
        case: whose config, weights and tokens they are of.

    Returns:
        (tap, verdict) in causal order.
    """
    right = oracle_taps(case.twin)
    follower = Follower(case.config, case.token_ids(), case.torch_dtype, right.__getitem__, *ways(case))
    found = (follower.see(a.tap, taps[a.tap]) for a in arrows(case.config) if a.tap in taps)
    return [(seen.arrow.tap, seen.verdict) for seen in found if seen is not None]


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
