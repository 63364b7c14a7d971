"""Who is to blame for a failure: the op that was asked alone, or the first step of a pass that is wrong."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from conformance.case_spec import parse_case
from conformance.cases import HistoryCase, ModelCase
from conformance.implementations.base import Unsupported
from conformance.records import Record, Status
from conformance.subject import Subject
from conformance.tally import Tally, describe_exception
from conformance.tracing import Row, Trace, shortened, trace

# Part of a requirement's id → the part of a Llama that an op alone is.
OPS = {
    "NORM": "norm",
    "MLP": "mlp",
    "ROPE": "rope",
    "SCALE": "rope",
    "ATTN": "attention",
    "MASK": "attention",
}
# What lies beyond a plain forward pass, by the requirement that asks for it.
BEYOND = {
    "CACHE": "the cache, or the positions and the mask behind it",
    "MASK": "the mask",
    "SCALE": "the frequency rule",
    "ROPE": "the rotation at other positions, in another dtype, or after other calls",
    "WEIGHT": "loading or export",
    "MEM": "what the model holds",
}
TRACED = 3  # failures of a check that are traced; the others have the same cause, as a rule


def locate(tally: Tally) -> None:
    """Say of the worst failures of a check where they come from."""
    failed = [r for r in tally.records if r.status is Status.FAIL]
    failed.sort(key=lambda r: -(math.inf if r.headroom is None else r.headroom))
    for record in failed[:TRACED]:
        tally.explain(blamed(record, tally.subject))


def blamed(record: Record, subject: Subject) -> Record:
    """The record of a failure with its suspect, and the steps around it where taps are shown."""
    case, part = parse_case(record.case), record.requirement.partition("-")[0]
    if isinstance(case, HistoryCase):
        return replace(record, suspect=BEYOND["CACHE"])
    if not isinstance(case, ModelCase):
        return replace(record, suspect=f"{OPS.get(part, part.lower())}: the op itself, asked alone")
    return explained(record, lambda: trace(subject, case))


def explained(record: Record, look: Callable[[], Trace]) -> Record:
    """The record of a failure with what a trace says; whatever goes wrong in looking is said instead."""
    try:
        found = look()
    except Unsupported as unsupported:
        return replace(
            record, suspect=f"not located: {unsupported}; a table TAPS would do (docs/your-own.md)"
        )
    except Exception as error:  # noqa: BLE001 - whatever a subject raises
        return replace(record, suspect=f"not located: looking at the taps raised {describe_exception(error)}")
    part = record.requirement.partition("-")[0]
    return replace(record, suspect=sentence(found, part), trace=[as_json(r) for r in shortened(found.rows)])


def sentence(found: Trace, part: str) -> str:
    """The suspect of a trace, in words."""
    row = found.first
    if row is None:
        what = BEYOND.get(part, "what it asks for beyond that")
        return f"no step of a plain forward pass adds more than rounding explains: {what}"
    if row.added is None:
        said = row.reason
    else:
        said = f"adds {short(row.added)} ({row.measure}), allowed {short(row.allowed)}"
        said += f", inherited {short(row.inherited)}" if row.inherited is not None else ""
        said += f", worst at {list(row.coordinate)}" if row.coordinate else ""
    return f"{row.component}: {row.tap} is the first step that is wrong; {said}"


def short(value: float | None) -> str:
    """Two digits, as the other numbers of a failure are written: 9.2e-7."""
    return "" if value is None else f"{value:.2g}".replace("e-0", "e-").replace("e+0", "e")


def as_json(row: Row) -> dict[str, Any]:
    """A row in plain JSON types."""
    numbers = ("added", "allowed", "headroom", "inherited")
    data = {**dataclasses.asdict(row), "over": row.over, "component": row.component}
    finite = {n: None if data[n] is None or not math.isfinite(data[n]) else data[n] for n in numbers}
    return {**data, **finite, "coordinate": list(row.coordinate), "through": list(row.through)}
