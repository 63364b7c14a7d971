"""What the page shows of the kill matrix: who survives, the picture, and every fault in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.records import read_content, told_of
from conformance.report.words import clipped, count, listed
from conformance.schema import PLACE, POWER, require

KILLED, SURVIVED, ERROR = "killed", "survived", "error"
_LEFT, _STEP, _GAP = 196, 11, 5  # where columns begin, how far apart they stand, and parts of the spec
_LETTER = 6.2  # of the name of a part: a part of few columns is to have room for it
_ROW, _HEAD = 11, 24


@dataclass(frozen=True, kw_only=True)
class Column:
    """A requirement of the picture."""

    requirement: str
    x: int
    part: str  # named above the first of its kind
    number: str


@dataclass(frozen=True, kw_only=True)
class Row:
    """A fault of the picture: three paths of marks, and a frame around the requirement that is to notice."""

    name: str
    y: int
    title: str
    killed: str
    survived: str
    errors: str
    frame: str
    bad: bool


def read_power(folder: Path) -> dict[str, Any] | None:
    """The kill matrix of a folder's results.json; None where none was measured.

    Raises:
        OSError, ValueError: as records.read_results does.
    """
    found: dict[str, Any] | None = read_content(folder).get("power")
    if found is not None:
        with told_of(folder):
            require(found, POWER, "power")
            for fault in found["faults"]:
                if fault["located"] is not None:
                    require(fault["located"], PLACE, f"located of {fault['fault']}")
    return found


def power_view(power: Mapping[str, Any], lines: int, text: int) -> dict[str, Any]:
    """Everything the section needs.

    Args:
        power: as in results.json (reports/README.md).
        lines: faults told in words.
        text: characters of one field.
    """
    faults, columns = power["faults"], _columns(power["requirements"])
    located = [f for f in faults if f["located"]]
    components = dict.fromkeys(f["component"] for f in faults)
    return {
        **power,
        "how": _how(power),
        "columns": columns,
        "width": max((c.x + round(_LETTER * (len(c.part) + 1)) for c in columns), default=_LEFT),
        "pictures": [_picture(c, [f for f in faults if f["component"] == c], columns) for c in components],
        "equivalents": [f for f in faults if f["equivalent"]],
        "later": [f for f in faults if f["needs"] not in ("", "quick")],
        "alone": sum(_alone(f) for f in faults) if power["full"] else 0,
        "located": len(located),
        "right": sum(f["located"]["right"] for f in located),
        "among": sum(_among(f) for f in located),
        "misplaced": [f for f in located if not f["located"]["right"]],
        "told": [
            {
                **f,
                "case": clipped(f["case"], text),
                "reason": clipped(f["reason"], text),
                "also": _also(f, power["plain"]),
            }
            for f in faults[:lines]
        ],
        "untold": len(faults[lines:]),
    }


def _how(power: Mapping[str, Any]) -> str:
    """What was run, and what the blanks of the picture mean."""
    asked = (
        "every requirement"
        if power["full"]
        else f"the requirement it declares and, for comparison, {power['plain']}; all others were not run"
    )
    return (
        f"Each fault is the reference with one thing wrong, judged by the suites' own checks on {asked}. "
        f"On the declared requirement the {power['profile']} profile is the largest that was tried; "
        "elsewhere the covering lists alone."
    )


def _alone(fault: Mapping[str, Any]) -> bool:
    """Whether the declared requirement is the only one that notices."""
    return [r for r, fate in fault["cells"].items() if fate == KILLED] == [fault["requirement"]]


def _among(fault: Mapping[str, Any]) -> bool:
    """Whether a fault is placed in several components at once, its own among them."""
    place = fault["located"]
    return not place["right"] and fault["sits_in"] in place["component"].split(" or ")


def _also(fault: Mapping[str, Any], plain: str) -> str:
    """What else became of a fault, in words."""
    others = {r: fate for r, fate in fault["cells"].items() if r != fault["requirement"]}
    fell = [r for r, fate in others.items() if fate == KILLED]
    broke = [r for r, fate in others.items() if fate == ERROR]
    survived = [r for r, fate in others.items() if fate == SURVIVED]
    told = [f"falls on {listed(fell)}"] if fell else []
    told += [f"an error on {listed(broke)}"] if broke else []
    if survived:
        named = [plain] if plain in survived else []
        rest = len(survived) - len(named)
        told.append(f"survives {listed([*named, *([count(rest, 'other')] if rest else [])])}")
    return "; ".join(told)


def _columns(requirements: Sequence[str]) -> list[Column]:
    found: list[Column] = []
    x, begun, last = _LEFT, _LEFT, ""
    for requirement in requirements:
        part, _, number = requirement.rpartition("-")
        part = part or requirement
        new = part != last
        if new:
            x = begun = max(x + _GAP, begun + round(_LETTER * (len(last) + 1)))
        x += _STEP
        found.append(Column(requirement=requirement, x=x, part=part if new else "", number=number))
        last = part
    return found


def _picture(
    component: str, faults: Sequence[Mapping[str, Any]], columns: Sequence[Column]
) -> dict[str, Any]:
    """The rows of one component, as one picture."""
    killed = sum(f["fate"] == KILLED for f in faults)
    height = _HEAD + _ROW * len(faults) + 2
    return {
        "component": component,
        "height": height,
        "grid": "".join(f"M{c.x - 8} 12V{height}" for c in columns if c.part),
        "title": f"{component}: {count(len(faults), 'fault')}, {killed} killed on the declared requirement",
        "rows": [_row(f, _HEAD + _ROW * i + 6, columns) for i, f in enumerate(faults)],
    }


def _row(fault: Mapping[str, Any], y: int, columns: Sequence[Column]) -> Row:
    fates = [fault["cells"].get(c.requirement) for c in columns]
    at = {fate: [c.x for c, f in zip(columns, fates, strict=True) if f == fate] for fate in (KILLED, ERROR)}
    threads = [
        (columns[first].x - 4, columns[last].x + 4)
        for first, last in _runs([i for i, fate in enumerate(fates) if fate == SURVIVED])
    ]
    frames = [f"M{c.x - 4} {y - 4}h8v8h-8z" for c in columns if c.requirement == fault["requirement"]]
    also = _also(fault, "")
    return Row(
        name=fault["fault"],
        y=y,
        title=f"{fault['fault']}: {fault['fate']} on {fault['requirement']}{also and f'; {also}'}",
        killed="".join(f"M{x} {y}h0" for x in at[KILLED]),
        survived="".join(f"M{start} {y}H{end}" for start, end in threads),
        errors="".join(f"M{x - 3} {y - 3}l6 6m0-6-6 6" for x in at[ERROR]),
        frame="".join(frames),
        bad=fault["fate"] != KILLED and not fault["equivalent"],
    )


def _runs(places: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of each run of neighbours."""
    runs: list[tuple[int, int]] = []
    for place in places:
        if runs and place == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], place)
        else:
            runs.append((place, place))
    return runs
