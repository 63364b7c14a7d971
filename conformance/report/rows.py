"""What the page lists of every record: rows that are alike as one row, texts that come again as a link.

Variants that share a small config have the same numbers, and implementations the same reasons: written out
for each, they would be most of the page.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from conformance.records import Record, Status
from conformance.report.standing import DTYPES, Cell, in_order
from conformance.report.words import count, headroom, listed, number

UNJUDGED = frozenset({Status.UNSUPPORTED, Status.SKIPPED})
_SHORT = 60  # characters of a text that is rather said again than referred to
_REASONS = 5
_FULL = 4  # rows of passes


@dataclass(frozen=True, kw_only=True)
class Line:
    """Records that differ in variant and dtype alone, as one row.

    Args:
        variants, dtypes: of all of them, in words; every variant goes with every dtype.
        record: the first of them.
    """

    variants: str
    dtypes: str
    record: Record


@dataclass(frozen=True, kw_only=True)
class Text:
    """Something said; or, if `at` is no "", the name of the place with that address where it was said."""

    words: str
    at: str = ""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """All records of a requirement on an implementation, or on several that are alike in all of them.

    Args:
        cell: the records, of the first.
        implementations: whose.
        above: whether the worst of them is told in full further up.
        reasons: why, of those that did not pass.
        case: the worst one; "" where none is worse than another, or it is told above.
        repro: the command for it.
        lines: rows; none where nothing was judged.
        rest: of further passes, by dtype, each with its headroom: all that is asked of what holds by far.
        left: what is said in place of rows that are left out.
    """

    cell: Cell
    implementations: list[str]
    above: bool
    reasons: list[Text]
    case: Text
    repro: str
    lines: list[Line]
    rest: dict[str, list[str]]
    left: str


class Listing:
    """Makes the entries of a page in the order in which they stand there.

    Args:
        link: the address of each requirement and implementation.
        variants: all of the run.
        above: what is told in full further up.
        rows: the most rows of an entry.
        reasons: whether reasons are given, and commands of what is not told above.
        cases: whether the worst case of what holds is given, too.
    """

    def __init__(
        self,
        link: Mapping[tuple[str, str], str],
        variants: Sequence[str],
        above: Container[tuple[str, str]],
        *,
        rows: int,
        reasons: bool,
        cases: bool,
    ) -> None:
        self._link, self._variants, self._above = link, variants, above
        self._rows, self._reasons, self._cases = rows, reasons, cases
        self._said: dict[str, tuple[str, str]] = {}

    def entries(self, cells: Iterable[Cell]) -> list[Entry]:
        """The next entries, of one requirement."""
        groups: dict[tuple[object, ...], list[Cell]] = {}
        for cell in cells:
            alone = cell.implementation if self._is_above(cell) or cell.worst.repro else ""
            shown = (_shown(r) for r in cell.records)
            groups.setdefault((alone, cell.worst.case, *shown), []).append(cell)
        return [self._entry(group[0], [c.implementation for c in group]) for group in groups.values()]

    def _is_above(self, cell: Cell) -> bool:
        return (cell.requirement, cell.implementation) in self._above

    def _entry(self, cell: Cell, implementations: list[str]) -> Entry:
        key, worst = (cell.requirement, cell.implementation), cell.worst
        above = self._is_above(cell)
        judged = any(r.status not in UNJUDGED for r in cell.records)
        lines, covered = self._lines(cell.records) if judged and self._rows else ([], 0)
        passes = [line for line in lines[_FULL:] if line.record.status is Status.PASS]
        rest: dict[str, list[str]] = {}
        for line in passes:
            rest.setdefault(line.dtypes, []).append(f"{line.variants} {headroom(line.record)}".rstrip())
        telling = worst.status.is_bad or (self._cases and worst.headroom is not None)
        in_full = telling and self._reasons and not above
        return Entry(
            cell=cell,
            implementations=implementations,
            above=above,
            reasons=[self._text(text, key) for text in why(cell, above=above)] if self._reasons else [],
            case=self._text(worst.case, key) if in_full else Text(words=""),
            repro=worst.repro if in_full else "",
            lines=[line for line in lines if line not in passes],
            rest=rest,
            left=left_out(cell, covered) if judged and covered < len(cell.records) else "",
        )

    def _text(self, words: str, key: tuple[str, str]) -> Text:
        first = self._said.setdefault(words, key)
        if first == key or len(words) <= _SHORT:
            return Text(words=words)
        return Text(words=f"as for {' · '.join(first)}", at=self._link[first])

    def _lines(self, records: Sequence[Record]) -> tuple[list[Line], int]:
        """Rows for as many records as there is room for, and how many these are."""
        groups = alike(records)[: self._rows]
        lines = [
            Line(
                variants=self._named(in_order((r.variant for r in group), ())),
                dtypes=listed(in_order((r.dtype for r in group), DTYPES)),
                record=group[0],
            )
            for group in groups
        ]
        return lines, sum(map(len, groups))

    def _named(self, names: list[str]) -> str:
        """Variants, the shorter way: by name, or as all but a few."""
        missing = sorted(set(self._variants) - set(names))
        if len(names) > 3 and len(missing) <= 2 and set(names) <= set(self._variants):
            return f"all {len(names)}" if not missing else f"all but {listed(missing)}"
        return ", ".join(names)


def _shown(r: Record) -> tuple[object, ...]:
    """What is shown of a record, but for whose it is."""
    return (r.variant, r.dtype, r.status, r.measure, r.reason, *_numbers(r))


def _numbers(r: Record) -> tuple[object, ...]:
    """What a row has of a record; nothing of one that was not judged."""
    judged = r.status not in UNJUDGED
    return (r.error, r.budget, r.headroom, r.coordinate, r.examples) if judged else ()


def alike(records: Iterable[Record]) -> list[list[Record]]:
    """Records that differ in variant and dtype alone, where every variant goes with every dtype; in order."""
    by_dtype: dict[tuple[object, ...], list[Record]] = {}
    for r in records:
        numbers = _numbers(r)
        by_dtype.setdefault((r.status, r.measure, numbers, r.dtype), []).append(r)
    merged: dict[tuple[object, ...], list[Record]] = {}
    for (*same, _), group in by_dtype.items():
        merged.setdefault((*same, frozenset(r.variant for r in group)), []).extend(group)
    return list(merged.values())


def why(cell: Cell, *, above: bool) -> list[str]:
    """The reasons of a cell's records that did not pass, each once, with how many it speaks for.

    A deviation's reason has what was seen in brackets behind it: what both have in common is said once.

    Args:
        cell: whose.
        above: its worst record is told further up: what that says is not said again.
    """
    spoken: dict[str, int] = {}
    told = set(split(cell.worst)) if above else set()
    for record in cell.records:
        if record.status is Status.PASS or not record.reason:
            continue
        for part in split(record):
            if part not in told:
                spoken[part] = spoken.get(part, 0) + 1
    found = [
        reason if number_of == len(cell.records) else f"{reason} ({count(number_of, 'record')})"
        for reason, number_of in spoken.items()
    ]
    rest = [f"{len(found) - _REASONS} more reasons are in results.json"] if len(found) > _REASONS else []
    return found[:_REASONS] + rest


def split(record: Record) -> list[str]:
    """The reason of a record; of a deviation, what is listed and what was seen."""
    listed_, bracket, seen = record.reason.partition(" [")
    if record.status is Status.DEVIATION and bracket and seen.endswith("]"):
        return [listed_, seen[:-1]]
    return [record.reason]


def left_out(cell: Cell, covered: int) -> str:
    """What is said in place of the records that are not listed."""
    rest = cell.records[covered:]
    measured = [record for record in rest if record.headroom is not None]
    above = f", none above {number(max(r.headroom or 0.0 for r in measured), line=True)}" if measured else ""
    return f"{len(rest)} more{above}; they are in results.json"
