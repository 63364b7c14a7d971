"""Where the marks of the two charts go; the templates write the SVG, so that Jinja2 escapes every word of it.

Coordinates are in the units of the chart's viewBox, about one CSS pixel each.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conformance.records import Record, Status
from conformance.report.standing import in_order, worst_order
from conformance.report.words import count, headroom, number, place, status_word

WIDTH = 360
_EDGE = 10
_ROW = 38
_HEAD = 22
_DOT = 3.2
_HIGH = 6  # the last of the dots of one place
_PLOT = {"left": 40, "right": 352, "top": 12, "bottom": 150}
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Log:
    """A logarithmic axis from `low` at `start` to `high` at `end`; values beyond are put at its ends."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The coordinate of a value."""
        inside = min(max(value, self.low), self.high)
        share = math.log(inside / self.low) / math.log(self.high / self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self, most: int = 6) -> list[tuple[float, str]]:
        """Coordinates and labels of powers of ten, at most so many."""
        first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
        step = max(1, math.ceil((last - first + 1) / most))
        return [(self(10.0**power), power_of_ten(power)) for power in range(first, last + 1, step)]


@dataclass(frozen=True)
class Mark:
    """One record or layer drawn by itself: a symbol at a point, with words."""

    x: float
    y: float
    status: Status
    title: str


@dataclass(frozen=True)
class Row:
    """One implementation of a strip: passes as one path of dots; of the others the worst with words."""

    label: str
    y: float
    title: str
    dots: str
    marks: tuple[Mark, ...]
    crosses: str


@dataclass(frozen=True, kw_only=True)
class Strip:
    """Headroom of every measured record of one dtype, one row per implementation."""

    dtype: str
    height: float
    title: str
    ticks: list[tuple[float, str]]
    line: float
    rows: tuple[Row, ...]
    unnumbered: int


@dataclass(frozen=True, kw_only=True)
class Layers:
    """Error per layer and the budget, as data flows, for one checkpoint, implementation and dtype."""

    title: str
    ticks_x: list[tuple[float, str]]
    ticks_y: list[tuple[float, str]]
    error: str
    budget: str
    marks: tuple[Mark, ...]
    first: str
    plot: Mapping[str, float]


def power_of_ten(power: int) -> str:
    """Such as "0.1", "1", "10", "10⁻⁶"."""
    if -2 <= power <= 2:
        return f"{10.0**power:g}"
    return f"10{str(power).translate(_SUPERSCRIPT)}"


def strips(
    records: Sequence[Record], implementations: Sequence[str], dtypes: Sequence[str], told: int
) -> list[Strip]:
    """One strip per dtype that has a measured record, all on the same axis.

    Args:
        records: of the whole run.
        implementations: their order.
        dtypes: their order.
        told: how many records that did not pass, per row, are drawn with words of their own.
    """
    largest = max((record.headroom for record in records if record.headroom is not None), default=0.0)
    axis = Log(0.01, 100.0 if largest > 10 else 10.0, _EDGE + 4, WIDTH - _EDGE - 4)
    found = []
    for dtype in in_order((record.dtype for record in records), dtypes):
        here = [record for record in records if record.dtype == dtype]
        measured = worst_order(record for record in here if record.headroom is not None)
        bare = [
            r for r in here if r.headroom is None and r.status not in (Status.UNSUPPORTED, Status.SKIPPED)
        ]
        if measured:
            found.append(_strip(dtype, measured, len(bare), implementations, axis, told))
    return found


def decades(charts: Iterable[Sequence[Mapping[str, Any]]]) -> tuple[float, float] | None:
    """The powers of ten between which all errors and budgets of these charts lie; None if there are none."""
    sizes = [e[key] for entries in charts for e in entries for key in ("error", "budget") if e[key]]
    if not sizes:
        return None
    low, high = math.floor(math.log10(min(sizes))), math.ceil(math.log10(max(sizes)))
    return 10.0**low, 10.0 ** max(high, low + 1)


def layers(
    name: str, entries: Sequence[Mapping[str, Any]], between: tuple[float, float] | None
) -> Layers | None:
    """The chart of a checkpoint's layers; None where no layer was measured.

    Args:
        name: what the chart shows, in words.
        entries: checkpoint["layers"]: layer, tap, error, budget, headroom, in the order data flows.
        between: the ends of the axis, as decades() gives them; charts to be compared share them.
    """
    if not entries or between is None:
        return None
    y = Log(*between, _PLOT["bottom"], _PLOT["top"])
    step = (_PLOT["right"] - _PLOT["left"]) / max(1, len(entries) - 1)
    x = [round(_PLOT["left"] + place * step, 1) for place in range(len(entries))]
    starts = {entry["layer"]: x[place] for place, entry in reversed(list(enumerate(entries)))}
    every = max(1, math.ceil(len(starts) / 8))
    shown = sorted(starts.items(), key=lambda item: item[1])[::every]
    marks = tuple(filter(None, (_layer_mark(at, entry, y) for at, entry in zip(x, entries, strict=True))))
    return Layers(
        title=f"Error per layer against the budget, {name}",
        ticks_x=[(at, str(layer)) for layer, at in shown],
        ticks_y=y.ticks(5),
        error=_path(x, [entry["error"] for entry in entries], y),
        budget=_path(x, [entry["budget"] for entry in entries], y),
        marks=marks,
        first=marks[0].title if marks else "",
        plot=_PLOT,
    )


def _strip(
    dtype: str, records: list[Record], bare: int, implementations: Sequence[str], axis: Log, told: int
) -> Strip:
    names = in_order((record.implementation for record in records), implementations)
    rows = []
    for index, name in enumerate(names):
        mine = [record for record in records if record.implementation == name]
        rows.append(_row(name, _HEAD + index * _ROW, mine, axis, told))
    worst = max(records, key=lambda record: record.headroom or 0.0)
    title = f"Headroom in {dtype}: {count(len(records), 'record')}, the largest {_tell(worst)}"
    return Strip(
        dtype=dtype,
        height=_HEAD + len(names) * _ROW + 18,
        title=title,
        ticks=[(x, _end(label, x, axis)) for x, label in axis.ticks()],
        line=axis(1.0),
        rows=tuple(rows),
        unnumbered=bare,
    )


def _end(label: str, x: float, axis: Log) -> str:
    if x == axis.start:
        return f"≤ {label}"
    return f"≥ {label}" if x == axis.end else label


def _row(name: str, top: float, records: list[Record], axis: Log, told: int) -> Row:
    middle = top + 24
    stacks: dict[int, int] = {}
    dots: dict[str, None] = {}
    crosses: dict[str, None] = {}
    marks: list[Mark] = []
    for record in records:
        x = axis(record.headroom or 0.0)
        # Dots of the same place stand around the middle, in a fixed order: a picture that can be compared.
        height = stacks[int(x / _DOT)] = stacks.get(int(x / _DOT), -1) + 1
        if height > _HIGH and record.status is Status.PASS:
            continue  # it would lie on another
        level = min(height, _HIGH)
        y = round(middle + (level + 1) // 2 * _DOT * 0.8 * (1 if level % 2 else -1), 1)
        if record.status is Status.PASS:
            dots[f"M{x:g} {y:g}h0"] = None
        elif len(marks) < told:
            marks.append(Mark(x, y, record.status, f"{_tell(record)}: {status_word(record.status)}"))
        else:
            crosses[f"M{x - 3.5:g} {y - 3.5:g}l7 7m0-7-7 7"] = None
    passes = [record for record in records if record.status is Status.PASS]
    title = name
    if passes:
        title = f"{name}: {count(len(passes), 'pass', 'passes')}, the largest {_tell(passes[0])}"
    return Row(name, middle, title, "".join(dots), tuple(marks), "".join(crosses))


def _tell(record: Record) -> str:
    return f"{headroom(record)} at {place(record)}"


def _path(x: Sequence[float], values: Sequence[float | None], axis: Log) -> str:
    """A line through the values, broken where there is none."""
    parts, pen = [], "M"
    for at, value in zip(x, values, strict=True):
        if value is None:
            pen = "M"
            continue
        parts.append(f"{pen}{at:g} {axis(value):g}")
        pen = "L"
    return "".join(parts)


def _layer_mark(x: float, entry: Mapping[str, Any], axis: Log) -> Mark | None:
    where = f"layer {entry['layer']}, {entry['tap']}"
    if entry["error"] is None:
        return Mark(x, axis.end, Status.FAIL, f"{where}: no finite error")
    if entry["headroom"] is not None and entry["headroom"] > 1:
        words = f"{where}: {number(entry['error'])}, allowed {number(entry['budget'])}"
        return Mark(x, axis(entry["error"]), Status.FAIL, words)
    return None
