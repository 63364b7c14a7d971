"""What the page shows, worked out of the records; the templates only place it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from conformance.records import BAD, Record, Status
from conformance.report import svg
from conformance.report.anchors import anchors
from conformance.report.checkpoints import checkpoint_views
from conformance.report.power import power_view
from conformance.report.rows import Listing
from conformance.report.sentences import heading, mark, start
from conformance.report.standing import (
    DTYPES,
    Cell,
    Standing,
    Tally,
    cells,
    finite,
    in_order,
    most_telling,
    natural,
    tallies,
    worst_first,
)
from conformance.report.words import MEANINGS, clipped, count, fact, headroom, listed, number, percent

COLUMNS = {
    Standing.BROKEN: "Do not hold",
    Standing.STALE: "Stale deviation",
    Standing.WITH_DEVIATIONS: "Hold with deviations",
    Standing.DEVIATES: "Deviate throughout",
    Standing.NOT_JUDGED: "Not judged",
}


@dataclass(frozen=True)
class Detail:
    """How much is written out: the page is to stay under 1 MB whatever the run.

    Args:
        rows: records listed per requirement and implementation.
        blocks: failures told in full; the others get a line each.
        lines: such lines, and facts.
        marks: failures per row of a strip that carry words.
        text: characters of one field.
        scripts: whether histories of caches are written out as files.
        cases: whether worst case and command are given of what holds, too.
        reasons: whether reason, worst case and command are given, beyond the failures told in full.
    """

    rows: int
    blocks: int
    lines: int
    marks: int
    text: int
    scripts: bool
    cases: bool
    reasons: bool


def view(
    run: Mapping[str, Any],
    records: Sequence[Record],
    checkpoints: Sequence[Mapping[str, Any]],
    detail: Detail,
    note: str = "",
    power: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Everything the templates need.

    Args:
        run, records, checkpoints, power: as in results.json (reports/README.md).
        detail: how much is written out.
        note: shown under the sentence.
    """
    records = [_clip(finite(record), detail.text) for record in records]
    statements = run["requirements"]
    table = cells(records)
    requirements = in_order((name for name, _ in table), list(statements))
    implementations = in_order((name for _, name in table), run["implementations"])
    address = anchors(requirements)
    suffix = anchors(implementations)
    link = {(r, i): f"{address[r]}--{suffix[i]}" for r, i in table}
    told = most_telling(worst_first(records, Status.FAIL, Status.ERROR))
    explained = worst_first(records, Status.UNEXPECTED_PASS, Status.DEVIATION)
    above = {(c.requirement, c.implementation) for c in told[: detail.blocks] + explained[: detail.blocks]}
    listing = Listing(
        link, run["variants"], above, rows=detail.rows, reasons=detail.reasons, cases=detail.cases
    )
    entries = {
        r: listing.entries(table[r, i] for i in implementations if (r, i) in table) for r in requirements
    }
    found = {
        "run": run,
        "note": note,
        "heading": heading(run, records) if records or not power else f"{power['sentence']}.",
        "statements": statements,
        "link": link,
        "verdict": _verdict(tallies(records, implementations, requirements)),
        "failures": told[: detail.blocks],
        "failures_left": told[detail.blocks :][: detail.lines],
        "failures_uncounted": max(0, len(told) - detail.blocks - detail.lines),
        "deviations": explained[: detail.blocks],
        "deviations_left": explained[detail.blocks :][: detail.lines],
        "deviations_uncounted": max(0, len(explained) - detail.blocks - detail.lines),
        "implementations": implementations,
        "groups": _groups(requirements),
        "address": address,
        "table": table,
        "legend": [
            (status, MEANINGS[status]) for status in Status if any(r.status is status for r in records)
        ],
        "absent": sorted(set(statements) - set(requirements), key=natural),
        "strips": svg.strips(records, implementations, DTYPES, detail.marks),
        "facts": _facts(records, implementations, detail.text),
        "checkpoints": checkpoint_views(checkpoints, detail.text),
        "power": power_view(power, detail.lines, detail.text) if power else None,
        "environment": _environment(run, detail),
        "detail": detail,
        "entries": entries,
        "shortened": not detail.cases or any(e.left for every in entries.values() for e in every),
    }
    return found | {"sections": _sections(found)}


def others(cell: Cell) -> str:
    """The variants and dtypes of a cell beyond its worst record; empty if there are none."""
    rest = [f"{record.variant} {record.dtype}" for record in cell.records[1:]]
    return listed(rest, 4)


def _clip(record: Record, most: int) -> Record:
    long = [record.reason, record.case, record.repro]
    if max(map(len, long)) <= most:
        return record
    reason, case, repro = (clipped(text, most) for text in long)
    return replace(record, reason=reason, case=case, repro=repro)


def _verdict(every: Sequence[Tally]) -> dict[str, Any]:
    """The table of implementations; standings that none is in, but for the first, take no column."""
    counts = {tally.implementation: Counter(cell.standing for cell in tally.cells) for tally in every}
    shown = [s for s in COLUMNS if s is Standing.BROKEN or any(count_of[s] for count_of in counts.values())]
    rows = [
        {
            "tally": tally,
            "mark": mark(tally),
            "counts": [counts[tally.implementation][s] for s in shown],
            "start": start(tally) if tally.standing(Standing.BROKEN) else "",
        }
        for tally in every
    ]
    return {"columns": [COLUMNS[standing] for standing in shown], "rows": rows}


def _groups(requirements: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Requirements by component: what stands before the hyphen of the id."""
    groups: dict[str, list[str]] = {}
    for requirement in requirements:
        groups.setdefault(requirement.rpartition("-")[0] or requirement, []).append(requirement)
    return list(groups.items())


def _facts(records: Sequence[Record], implementations: Sequence[str], most: int) -> list[dict[str, Any]]:
    """What was seen, one row per fact and value: who showed it and where."""
    seen: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        for name, value in record.facts.items():
            seen.setdefault((name, clipped(str(value), most)), []).append(record)
    return [
        {
            "name": name,
            "value": value,
            "implementations": listed(in_order((r.implementation for r in where), implementations)),
            "requirements": listed(in_order((r.requirement for r in where), ()), 4),
            "dtypes": listed(in_order((r.dtype for r in where), DTYPES)),
            "records": len(where),
        }
        for (name, value), where in sorted(
            seen.items(), key=lambda item: (item[0][0], -len(item[1]), item[0][1])
        )
    ]


def _environment(run: Mapping[str, Any], detail: Detail) -> list[tuple[str, str]]:
    rows = [
        (name.replace("_", " "), clipped(fact(value), detail.text))
        for name, value in run.items()
        if name not in ("versions", "requirements")
    ]
    return rows + [(name, str(version)) for name, version in run["versions"].items()]


def _sections(found: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Address, title and count of the sections that have something to show, in the order of the page."""
    stale = any(cell.worst.status in BAD for cell in found["deviations"])
    amount = {
        name: len(found[name]) + len(found[f"{name}_left"]) + found[f"{name}_uncounted"]
        for name in ("failures", "deviations")
    }
    every = (
        ("failures", "What does not hold", found["failures"]),
        ("deviations", "Deviations and unexpected passes" if stale else "Deviations", found["deviations"]),
        ("matrix", "Requirements by implementation", found["groups"]),
        ("headroom", "Headroom by dtype", found["strips"]),
        ("checkpoints", "Trained checkpoints", found["checkpoints"]),
        ("power", "Power: every seeded fault", found["power"]),
        ("facts", "Seen, not judged", found["facts"]),
        ("records", "Every record", found["groups"]),
        ("environment", "Environment", found["environment"]),
    )
    return [(name, words, str(amount.get(name, ""))) for name, words, there in every if there]


WORDS = {
    "count": count,
    "headroom": headroom,
    "number": number,
    "percent": percent,
    "others": others,
}
