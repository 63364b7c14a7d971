"""Counting the outcomes of a check: a case is examined, the worst of each variant and dtype is kept."""

from __future__ import annotations

import os
import traceback
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from conformance.cases import Case, ModelCase
from conformance.implementations.base import Implementation, Model, Unsupported
from conformance.numerics.verdict import worst_of
from conformance.records import Record, Status

if TYPE_CHECKING:
    from conformance.checks import Check


class Subject:
    """An implementation under test: what it is asked goes to its device, and built models are kept.

    Args:
        implementation: who is compared.
        device: where it computes.
    """

    def __init__(self, implementation: Implementation, device: str = "cpu") -> None:
        self.implementation = implementation
        self.device = torch.device(device)
        self._models: dict[object, Model] = {}

    def model(self, case: ModelCase) -> Model:
        """The built model of a case; cases on the same weights share it."""
        if case.model_key not in self._models:
            weights = {name: self.on_device(w) for name, w in case.weights().items()}
            self._models[case.model_key] = self.implementation.build(case.config, weights)
        return self._models[case.model_key]

    def on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor where the implementation computes."""
        return tensor.to(self.device)


class Tally:
    """Collects the outcomes of one check on one implementation, keeping the worst of each variant and dtype."""

    def __init__(self, check: Check, subject: Subject) -> None:
        self.check = check
        self.subject = subject
        self._records: dict[tuple[str, str], Record] = {}
        self._outcomes: dict[Case, Record] = {}

    @property
    def records(self) -> list[Record]:
        """One per variant and dtype."""
        return list(self._records.values())

    def judge(self, case: Case) -> Record:
        """Examine a case and count it; variants that share a small config share the work."""
        outcome = self._outcomes.get(case.twin)
        if outcome is None:
            outcome = self._outcomes[case.twin] = self.examine(case)
        if outcome.case != repr(case):
            repro = self.repro(case) if outcome.repro else ""
            outcome = replace(outcome, variant=case.subject, case=repr(case), repro=repro)
        self.add(outcome)
        return outcome

    def examine(self, case: Case) -> Record:
        """The outcome of one case; nothing the implementation raises gets out."""
        blank = Record(
            requirement=self.check.requirement,
            implementation=str(self.subject.implementation.name),
            variant=case.subject,
            dtype=case.dtype,
            status=Status.PASS,
            examples=1,
            case=repr(case),
            repro=self.repro(case),
        )
        try:
            with torch.no_grad(), warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("default")  # a subject may warn; it is noted, and no reason to fail
                verdicts = self.check.body(self.subject, case)
        except Unsupported as unsupported:
            return replace(blank, status=Status.UNSUPPORTED, reason=str(unsupported), repro="")
        except Exception as error:  # noqa: BLE001 - whatever a subject raises is a result
            return replace(blank, status=Status.ERROR, reason=describe_exception(error))
        verdict = worst_of(*verdicts) if isinstance(verdicts, list) else verdicts
        return replace(
            blank,
            status=Status.PASS if verdict.passed else Status.FAIL,
            measure=verdict.measure,
            error=verdict.error,
            budget=verdict.budget,
            headroom=verdict.headroom,
            coordinate=verdict.coordinate,
            reason=verdict.reason,
            repro="" if verdict.passed else blank.repro,
            facts={**verdict.facts, **({"warned": str(warned[0].message)[:300]} if warned else {})},
        )

    def add(self, outcome: Record) -> None:
        """Count an outcome; the worst one of a variant and dtype is kept whole."""
        key = (outcome.variant, outcome.dtype)
        known = self._records.get(key)
        self._records[key] = outcome if known is None else merge(known, outcome)

    def skip(self, reason: str) -> None:
        """Say that there was nothing to judge."""
        self._records["", ""] = Record(
            requirement=self.check.requirement,
            implementation=str(self.subject.implementation.name),
            variant="ops",
            dtype="any",
            status=Status.SKIPPED,
            reason=reason,
        )

    def repro(self, case: Case) -> str:
        """The command line that judges this case alone."""
        path = os.path.relpath(self.check.path)
        device = "" if self.subject.device.type == "cpu" else f" --device {self.subject.device}"
        return (
            f"pytest {path}::{self.check.title} --impl {self.subject.implementation.name}"
            f'{device} --case "{case!r}"'
        )


def merge(one: Record, other: Record) -> Record:
    """Two records of one key as one: the worse one, with the examples of both."""
    rank = {Status.ERROR: 3, Status.FAIL: 2, Status.UNEXPECTED_PASS: 2, Status.DEVIATION: 1, Status.PASS: 1}
    worse = max(one, other, key=lambda r: (rank.get(r.status, 0), r.headroom or 0.0, r.error or 0.0))
    milder = other if worse is one else one
    reason = worse.reason
    if milder.status is Status.UNSUPPORTED and worse.status is Status.PASS and not reason:
        reason = f"in part: {milder.reason}"
    return replace(
        worse,
        examples=one.examples + other.examples,
        facts={**milder.facts, **worse.facts},
        reason=reason,
    )


def describe_exception(error: BaseException) -> str:
    """What was raised and where, in one line."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" (at {Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"[:2000]
