"""Counting the outcomes of a check: a case is examined, the worst of each variant and dtype is kept."""

from __future__ import annotations

import math
import os
import shlex
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from conformance.cases import Case, HistoryCase, ModelCase, TableCase
from conformance.implementations.base import Unsupported
from conformance.numerics.verdict import Verdict, worst_of
from conformance.records import Record, Status
from conformance.schema import well_formed
from conformance.subject import OPTIONS, Subject, options

CLONE = Path(__file__).resolve().parent.parent
NOT_THE_USERS = (
    "site-packages",
    "<frozen",
    *(str(CLONE / part) + os.sep for part in ("conformance", "reference_impl", "suites")),
)


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked of an implementation, case by case.

    Args:
        requirement: id.
        title: the body's name, a sentence.
        path: file of the suite.
        body: (subject, case) → verdict, or several.
    """

    requirement: str
    title: str
    path: Path
    body: Callable[[Subject, Case], Verdict | list[Verdict]]


class Tally:
    """Collects the outcomes of a check on an implementation, the worst of each variant and dtype."""

    def __init__(self, question: Question, subject: Subject) -> None:
        self.question = question
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
        if outcome.case != case.spec:
            repro = self.repro(case) if outcome.repro else ""
            script = self.script(case) if outcome.script else ""
            outcome = replace(outcome, variant=case.subject, case=case.spec, repro=repro, script=script)
        self.add(outcome)
        return outcome

    def examine(self, case: Case) -> Record:
        """The outcome of one case; nothing the implementation raises gets out."""
        blank = Record(
            requirement=self.question.requirement,
            implementation=self.subject.implementation.name,
            variant=case.subject,
            dtype=case.dtype,
            status=Status.PASS,
            examples=1,
            case=case.spec,
            repro=self.repro(case),
        )
        try:
            with torch.no_grad(), warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("default")  # a subject may warn; it is noted, and no reason to fail
                verdicts = self.question.body(self.subject, case)
        except Unsupported as unsupported:
            return replace(blank, status=Status.UNSUPPORTED, reason=str(unsupported), repro="")
        except Exception as error:  # noqa: BLE001 - whatever a subject raises is a result
            reason = self.placed(describe_exception(error), case)
            return replace(blank, status=Status.ERROR, reason=reason, script=self.script(case))
        given = verdicts if isinstance(verdicts, list) else [verdicts]
        if not given or not all(isinstance(verdict, Verdict) for verdict in given):
            raise TypeError(f"{self.question.title} returned {verdicts!r}, expected a Verdict or several")
        verdict = worst_of(*given)
        return replace(
            blank,
            status=Status.PASS if verdict.passed else Status.FAIL,
            measure=verdict.measure,
            error=verdict.error,
            budget=verdict.budget,
            headroom=verdict.headroom,
            coordinate=verdict.coordinate,
            reason=verdict.reason
            if verdict.passed
            else self.placed(self.advised(verdict.reason, case), case),
            repro="" if verdict.passed else blank.repro,
            facts={
                **verdict.facts,
                **({"kinds of cache": kinds} if (kinds := self.kinds(case)) else {}),
                **({"warned": str(warned[0].message)[:300]} if warned else {}),
            },
            script="" if verdict.passed else self.script(case),
        )

    def advised(self, reason: str, case: Case) -> str:
        """The reason of a failure, and what to do where nothing but an option is ignored."""
        plain = without_options(case)
        if plain is None or self.examine(plain).status is not Status.PASS:
            return reason
        asked = f"the config asks for {', '.join(options(case))}: who does not know it refuses to build"
        return f"{reason}; {asked}" if reason else asked

    def placed(self, reason: str, case: Case) -> str:
        """The reason of a failure, and of what kind the caches are."""
        return "; ".join(filter(None, (reason, self.kinds(case))))

    def kinds(self, case: Case) -> str:
        """Of what kind each cache of a history is; "" where there is one kind alone."""
        if not isinstance(case, HistoryCase):
            return ""
        try:
            there = self.subject.model(case.twin.models[0]).cache_kinds()
            made = {(event[1], there[event[4] % len(there)]) for event in case.events if event[0] == "new"}
        except Exception:  # noqa: BLE001 - whatever is wrong with a subject is told by what was judged
            return ""
        return ", ".join(f"cache {cache} is {kind}" for cache, kind in sorted(made)) if there[1:] else ""

    def script(self, case: Case) -> str:
        """A history of caches as a Python file of its own; "" for other cases."""
        return case.script(self.subject.implementation.name) if isinstance(case, HistoryCase) else ""

    def add(self, outcome: Record) -> None:
        """Count an outcome; the worst one of a variant and dtype is kept whole."""
        key = (outcome.variant, outcome.dtype)
        known = self._records.get(key)
        self._records[key] = outcome if known is None else merge(known, outcome)

    def explain(self, record: Record) -> None:
        """Put a record in the place of the one it explains."""
        self._records[record.variant, record.dtype] = record

    def skip(self, reason: str) -> None:
        """Say that there was nothing to judge."""
        self._records["", ""] = skipped(self.question.requirement, self.subject, reason)

    def repro(self, case: Case) -> str:
        """The command line that judges this case alone."""
        path = os.path.relpath(self.question.path)
        device = "" if self.subject.device.type == "cpu" else f" --device {self.subject.device}"
        who = shlex.quote(self.subject.implementation.name)
        return f'{pytest()} {path}::{self.question.title} --impl {who}{device} --case "{case.spec}"'


def pytest() -> str:
    """What runs pytest under this interpreter, to be pasted where this process was started."""
    here, python = Path.cwd(), Path(sys.executable)
    return f"{python.relative_to(here) if python.is_relative_to(here) else 'python'} -m pytest"


def skipped(requirement: str, subject: Subject, reason: str) -> Record:
    """A record that says why nothing was judged."""
    return Record(
        requirement=requirement,
        implementation=subject.implementation.name,
        variant="ops",
        dtype="any",
        status=Status.SKIPPED,
        reason=reason,
    )


def without_options(case: Case) -> Case | None:
    """The case of a config as every Llama has it; None where it asks for no option."""
    if not isinstance(case, ModelCase | TableCase) or not options(case):
        return None
    return replace(case, but=tuple((name, value) for name, value in case.but if name not in OPTIONS))


def merge(one: Record, other: Record) -> Record:
    """Two records of one key as one: the worse one, with the examples of both."""
    rank = {Status.ERROR: 4, Status.FAIL: 3, Status.UNEXPECTED_PASS: 2, Status.DEVIATION: 2, Status.PASS: 1}

    def badness(r: Record) -> tuple[int, float, float]:
        unmeasured = math.inf if r.headroom is None and r.status.is_bad else 0.0  # a shape, a NaN, a law
        return rank.get(r.status, 0), r.headroom or unmeasured, r.error or 0.0

    worse = max(one, other, key=badness)
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
    """What was raised and where, in one line: the innermost line of the user's own code, if there is one."""
    frames = list(traceback.extract_tb(error.__traceback__))
    own = [f for f in frames if not any(part in f.filename for part in NOT_THE_USERS)]
    frames = own or frames
    where = f" (at {Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return str(well_formed(f"{type(error).__name__}: {error}{where}"[:2000]))
