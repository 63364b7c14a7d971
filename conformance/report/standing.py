"""Which requirements hold for which implementation: the counting that every rendering shares.

A requirement stands in one of six ways for an implementation, decided by its records alone:

- does not hold: at least one record failed or could not be carried out (fail, error);
- stale deviation: none of these, but a listed deviation no longer shows (unexpected-pass);
- holds: no bad record, at least one pass, no deviation;
- holds with deviations: no bad record, at least one pass, at least one deviation;
- deviates: no bad record, no pass, at least one deviation; known and explained, but not counted as holding;
- not judged: every record is unsupported or skipped.

All but the last are judged. The first two turn the run red.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from conformance.records import SEVERITY, Record, Status
from conformance.spec import ASKS, requirements

DTYPES = ("float64", "float32", "bfloat16", "float16")
# What begins the spec of a case that asks more than one op alone.
WHOLE = ("ModelCase", "PaddedCase", "PackedCase", "PeakCase", "HistoryCase", "checkpoint")
_RANK = {status: rank for rank, status in enumerate(SEVERITY)}


class Standing(enum.StrEnum):
    """How a requirement stands for an implementation."""

    BROKEN = "does not hold"
    STALE = "stale deviation"
    HOLDS = "holds"
    WITH_DEVIATIONS = "holds with deviations"
    DEVIATES = "deviates"
    NOT_JUDGED = "not judged"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """All records of one requirement on one implementation, worst first; never empty."""

    requirement: str
    implementation: str
    records: tuple[Record, ...]

    @property
    def worst(self) -> Record:
        """The record a reader should see first."""
        return self.records[0]

    @property
    def alone(self) -> bool:
        """Whether its worst record is of an op that was asked alone, without a model around it."""
        return self.worst.case != "" and not self.worst.case.startswith(WHOLE)

    @property
    def standing(self) -> Standing:
        """How the requirement stands, as the module's docstring says."""
        statuses = {record.status for record in self.records}
        if statuses & {Status.FAIL, Status.ERROR}:
            return Standing.BROKEN
        if Status.UNEXPECTED_PASS in statuses:
            return Standing.STALE
        if Status.DEVIATION in statuses:
            return Standing.WITH_DEVIATIONS if Status.PASS in statuses else Standing.DEVIATES
        return Standing.HOLDS if Status.PASS in statuses else Standing.NOT_JUDGED


@dataclass(frozen=True, kw_only=True)
class Tally:
    """One implementation: its cells, in the order of the requirements."""

    implementation: str
    cells: tuple[Cell, ...]

    def standing(self, *standings: Standing) -> list[Cell]:
        """The cells that stand in one of these ways."""
        return [cell for cell in self.cells if cell.standing in standings]

    @property
    def judged(self) -> int:
        """How many requirements were judged."""
        return len(self.cells) - len(self.standing(Standing.NOT_JUDGED))

    @property
    def holding(self) -> int:
        """How many of the judged ones hold, with deviations or without."""
        return len(self.standing(Standing.HOLDS, Standing.WITH_DEVIATIONS))

    @property
    def tightest(self) -> Record | None:
        """The record of the largest headroom; a deviation is known and counted apart."""
        measured = [
            record
            for cell in self.cells
            for record in cell.records
            if record.headroom is not None and record.status is not Status.DEVIATION
        ]
        return max(measured, key=lambda record: record.headroom or 0.0, default=None)


def badness(record: Record) -> tuple[int, float]:
    """Sort key, worst first: by status, then by headroom; a bad record without a number is infinitely bad."""
    headroom = record.headroom
    if headroom is None:
        headroom = math.inf if record.status.is_bad else -1.0
    return (_RANK[record.status], -headroom)


def worst_order(records: Iterable[Record]) -> list[Record]:
    """The records worst first; ties by requirement, implementation, variant and dtype, never by chance."""
    return sorted(records, key=lambda r: (badness(r), *map(natural, r.key[:3]), in_dtype_order(r.dtype)))


def in_dtype_order(dtype: str) -> tuple[int, str]:
    """Sort key of a dtype: wide before narrow, unknown ones last."""
    return (DTYPES.index(dtype) if dtype in DTYPES else len(DTYPES), dtype)


def finite(record: Record) -> Record:
    """The record as results.json keeps it: an infinite or undefined number is None."""
    numbers = (record.error, record.budget, record.headroom)
    if all(number is None or math.isfinite(number) for number in numbers):
        return record
    return Record.from_json(record.to_json())


@cache
def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Sort key that puts NORM-2 before NORM-10."""
    parts = re.findall(r"\d+|\D+", name)
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in parts)


def in_order(names: Iterable[str], first: Sequence[str]) -> list[str]:
    """Names without repeats: those of `first` in its order, then the others in natural order."""
    rank = {name: place for place, name in enumerate(first)}
    return sorted(set(names), key=lambda name: (rank.get(name, len(rank)), natural(name)))


def cells(records: Iterable[Record]) -> dict[tuple[str, str], Cell]:
    """Records grouped by (requirement, implementation), worst record first within each."""
    grouped: dict[tuple[str, str], list[Record]] = {}
    for record in worst_order(map(finite, records)):
        grouped.setdefault((record.requirement, record.implementation), []).append(record)
    return {
        key: Cell(requirement=key[0], implementation=key[1], records=tuple(group))
        for key, group in grouped.items()
    }


def tallies(
    records: Sequence[Record], implementations: Sequence[str] = (), requirements: Sequence[str] = ()
) -> list[Tally]:
    """One tally per implementation seen, in the order of the run where that is given."""
    table = cells(records)
    rows = in_order((requirement for requirement, _ in table), requirements)
    return [
        Tally(implementation=name, cells=tuple(table[row, name] for row in rows if (row, name) in table))
        for name in in_order((implementation for _, implementation in table), implementations)
    ]


@cache
def telling(requirement: str) -> tuple[int, int]:
    """Sort key: what points at its cause before what fails with anything; then the order of the spec."""
    known = requirements()
    if requirement not in known:
        return len(ASKS), len(known)
    return ASKS.index(known[requirement].asks), list(known).index(requirement)


def most_telling(cells: Iterable[Cell]) -> list[Cell]:
    """Broken cells in the order in which to look at them; an op comes first where it was asked alone."""

    def key(cell: Cell) -> tuple[int, int]:
        asks, place = telling(cell.requirement)
        return len(ASKS) if asks == 0 and not cell.alone else asks, place

    return sorted(cells, key=key)


def worst_first(records: Sequence[Record], *statuses: Status) -> list[Cell]:
    """The cells that hold such records, reduced to those records, worst first.

    Args:
        records: of a whole run.
        statuses: which to keep.
    """
    return list(cells(record for record in records if record.status in statuses).values())
