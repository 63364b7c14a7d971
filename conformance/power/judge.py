"""One fault on one requirement: the requirement's own checks, one after another, until one kills it."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from conformance import builtin_variants as _builtin_variants  # noqa: F401 - registers them
from conformance.checks import PROFILE_DRAWS, Check, Selection
from conformance.faults import Fault
from conformance.power.places import COMPARISONS, Place, place_of
from conformance.records import Record, Status
from conformance.subject import Subject
from conformance.suites import proofs
from conformance.tally import describe_exception

PROFILES = tuple(PROFILE_DRAWS)


class Fate(enum.StrEnum):
    """What became of a fault on a requirement, from the least that is known to a kill."""

    NOT_RUN = "not run"
    SURVIVED = "survived"
    ERROR = "error"
    KILLED = "killed"


RANK = {fate: rank for rank, fate in enumerate(Fate)}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell of the matrix.

    Args:
        fault, requirement: whose.
        fate: how it ended.
        needs: the profile that kills it: "quick" is the covering lists, the others draw more cases.
        check: the check that decided.
        measure: which error was the worst.
        headroom: of the case that kills; None where nothing could be measured.
        case: on which it was decided.
        reason: in words, where there is more to say.
        place: where the killing case is traced to, of comparisons of logits and layers.
    """

    fault: str
    requirement: str
    fate: Fate
    needs: str = ""
    check: str = ""
    measure: str = ""
    headroom: float | None = None
    case: str = ""
    reason: str = ""
    place: Place | None = None


def judged(fault: Fault, requirement: str, profile: str = "quick") -> Cell:
    """Run the checks of a requirement on a fault until one kills it; an error is no kill.

    Args:
        fault: the implementation that is wrong.
        requirement: whose checks.
        profile: the largest that is tried; those below it come first.
    """
    found = Cell(fault=fault.name, requirement=requirement, fate=Fate.NOT_RUN)
    for level in PROFILES[: PROFILES.index(profile) + 1]:
        try:
            found = _tried(fault, requirement, level)
        except Exception as error:  # noqa: BLE001 - of the fault or of a check: an error, and no end of the run
            reason = describe_exception(error)
            found = Cell(fault=fault.name, requirement=requirement, fate=Fate.ERROR, reason=reason)
        if found.fate is Fate.KILLED:
            break
    return found


def checks_of(requirement: str) -> list[Check]:
    """The checks of the suites that prove a requirement; none where it takes a trained checkpoint."""
    return [p.check for p in proofs() if p.requirement == requirement and hasattr(p, "check")]


def _tried(fault: Fault, requirement: str, profile: str) -> Cell:
    torch.manual_seed(0)  # dropout draws, and a matrix is to be the same in every run
    subject, selection = Subject(fault.make()), Selection(profile=profile)
    worst = Cell(fault=fault.name, requirement=requirement, fate=Fate.NOT_RUN)
    for check in checks_of(requirement):
        cell = _cell(fault, check, check.run(subject, selection, until_failure=True), profile)
        if RANK[cell.fate] > RANK[worst.fate]:
            worst = cell
        if cell.fate is Fate.KILLED:
            break
    return worst


def _cell(fault: Fault, check: Check, records: Sequence[Record], profile: str) -> Cell:
    record = max(records, key=lambda r: RANK[_fate(r)])
    fate = _fate(record)
    blank = Cell(fault=fault.name, requirement=check.requirement, fate=fate, check=check.title)
    if fate is Fate.SURVIVED:
        return blank
    traced = fate is Fate.KILLED and check.requirement in COMPARISONS
    return Cell(
        **{
            **vars(blank),
            "needs": profile if fate is Fate.KILLED else "",
            "measure": record.measure,
            "headroom": record.headroom,
            "case": record.case,
            "reason": record.reason,
            "place": place_of(fault, record.case) if traced else None,
        }
    )


def _fate(record: Record) -> Fate:
    return {Status.FAIL: Fate.KILLED, Status.ERROR: Fate.ERROR, Status.PASS: Fate.SURVIVED}.get(
        record.status, Fate.NOT_RUN
    )
