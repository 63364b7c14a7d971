"""A trace as lines of text: every step with what it inherits and what it adds."""

from __future__ import annotations

from collections.abc import Iterable

from conformance.report.words import number
from conformance.tracing import Row, Trace

HEAD = ("", "step", "part", "inherited", "added", "allowed", "headroom", "measure", "worst at")


def lines(rows: Iterable[Row]) -> list[str]:
    """A table in columns, one line a step; the first that is wrong is marked."""
    cells: list[tuple[str, ...]] = [HEAD]
    marked = False
    for row in rows:
        mark = "✗" if row.over and not marked else "·" if row.over else ""
        marked = marked or row.over
        numbers = [number(value, "") for value in (row.inherited, row.added, row.allowed, row.headroom)]
        where = str(list(row.coordinate)) if row.coordinate else ""
        cells.append((mark, row.tap, row.component, *numbers, row.reason or row.measure, where))
    widths = [max(len(row[i]) for row in cells) for i in range(len(HEAD))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in cells]


def conclusion(found: Trace) -> str:
    """What a trace says, in a sentence."""
    first = found.first
    if first is None:
        return f"Every one of {len(found.rows)} steps is within its budget on the implementation's own input."
    others = sum(row.over for row in found.rows) - 1
    also = f" {others} later steps are marked ·: they add more than their budget too." if others else ""
    return f"{first.tap} ({first.component}) is the first step that adds more than rounding explains.{also}"
