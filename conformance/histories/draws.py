"""Which histories are drawn, and how often."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import torch
from hypothesis import Verbosity, settings
from hypothesis import seed as seeded
from hypothesis.stateful import run_state_machine_as_test

from conformance.cases.history import HistoryCase
from conformance.histories.machine import Machine, Tell
from conformance.implementations.base import Unsupported
from conformance.weights import Regime

if TYPE_CHECKING:
    from conformance.checks import Selection
    from conformance.subject import Subject

REGIMES: tuple[Regime, ...] = ("loud", "quiet")
SEEDS = 50  # of weights
EVENTS = 8  # rules of a history, but for the one that makes its first cache


@dataclass(frozen=True, kw_only=True)
class Histories:
    """Histories of caches of some models.

    Args:
        headers: cases whose models are asked; their events are not.
        share: how many are drawn, of those that a profile has.
    """

    headers: tuple[HistoryCase, ...]
    share: float = 1.0

    def run(self, subject: Subject, tell: Tell, how: settings, seed: int) -> None:
        """Draw histories and play them.

        Args:
            subject: who; models that it does not build, or without a cache, are left out.
            tell: see Machine; what it raises ends the search, and is raised again when it has been shrunk.
            how: how many, and what else Hypothesis is told.
            seed: of the draws.
        """
        offered = [header for header in self.headers if has_cache(subject, header)]
        if not offered:
            return
        # A failure is told as a record: there is nothing for Hypothesis to print.
        how = settings(how, stateful_step_count=EVENTS + 1, verbosity=Verbosity.quiet)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a subject: noted where covering lists are judged
            machine = seeded(seed)(lambda: Machine(subject, offered, tell))
            # What makes a machine is enough.
            run_state_machine_as_test(cast("type[Machine]", machine), settings=how)


def has_cache(subject: Subject, header: HistoryCase) -> bool:
    """Whether an implementation has a cache for the model of a case; if it raises, that is a result."""
    try:
        subject.model(header.twin.models[0]).new_cache(1, 8)
    except Unsupported:
        return False
    except Exception:  # noqa: BLE001 - as above
        return True
    return True


def any_history(selection: Selection) -> Histories:
    """Of an untied and a tied model, in each regime and dtype."""
    return _of(selection, selection.few())


def sliding_history(selection: Selection) -> Histories:
    """Of a model with a sliding window, where there is one."""
    slides = [
        (v.name, shape)
        for v in selection.variants
        for shape, config in v.small.items()
        if config.sliding_window is not None
    ]
    return replace(_of(selection, slides[:1]), share=0.3)


def _of(selection: Selection, models: Iterable[tuple[str, str]]) -> Histories:
    first = HistoryCase(seed=selection.seed % SEEDS)
    return Histories(
        headers=tuple(
            replace(first, dtype=dtype, variant=variant, shape=shape, regime=regime)
            for dtype in selection.dtypes
            for variant, shape in models
            for regime in REGIMES
        )
    )
