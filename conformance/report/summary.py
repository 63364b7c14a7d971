"""The run outside the page: lines for the terminal, and for GitHub a step summary and annotations.

The lines are made in conformance/report/sentences.py and offered from here. No template engine is needed.
GitHub drops a step summary above 1 MiB whole and shows ten errors a step, so both are kept well below and
say what they leave out.
"""

import html
import re
from collections.abc import Mapping, Sequence
from typing import Any

from conformance.records import BAD, Record, Status
from conformance.report.sentences import failures, heading, mark, sentence, verdicts
from conformance.report.standing import Cell, Standing, most_telling, tallies, worst_first
from conformance.report.words import (
    SYMBOLS,
    clipped,
    count,
    headroom,
    measured,
    one_line,
    place,
    status_word,
)

__all__ = ["annotations", "failures", "heading", "sentence", "step_summary", "verdicts"]

SUMMARY_BYTES = 200_000
ANNOTATIONS = 10
_DETAILED = 10
_CLIP = 300


def step_summary(run: Mapping[str, Any], records: Sequence[Record]) -> str:
    """The run in GitHub's Markdown, at most 200 kB.

    Args:
        run: as written to results.json.
        records: of the whole run.

    Returns:
        The sentence, a table of implementations, what does not hold, then the deviations; worst first, and
        where it is cut it says how many are left out.
    """
    lines = ["# llama-conformance", "", f"**{_md(heading(run, records))}**", ""]
    lines += _verdict_table(run, records)
    # What follows can be long; the part that matters less gives way first.
    deviating = [_cell_row(cell) for cell in worst_first(records, Status.DEVIATION)]
    broken = [_cell_row(cell) for cell in most_telling(worst_first(records, *BAD))]
    blocks = [
        f"<details><summary>{_md(block.splitlines()[0])}</summary>\n\n<pre>{html.escape(block)}</pre>\n\n</details>\n"
        for block in failures(records, _DETAILED, run["requirements"])[:_DETAILED]
    ]
    room = SUMMARY_BYTES - _size(lines)
    for part in (
        _section("Does not hold", broken, room * 6 // 10, table=True),
        _section("The worst in full", blocks, room * 2 // 10, table=False),
        _section("Deviations", deviating, room * 2 // 10, table=True),
    ):
        lines += part
    return "\n".join(lines) + "\n"


def annotations(records: Sequence[Record]) -> list[str]:
    """At most ten `::error` workflow commands, worst first; the tenth counts the rest if there are more."""
    broken = most_telling(worst_first(records, *BAD))
    shown = broken if len(broken) <= ANNOTATIONS else broken[: ANNOTATIONS - 1]
    lines = [_annotation(cell) for cell in shown]
    if len(broken) > len(shown):
        rest = count(len(broken) - len(shown), "more requirement", "more requirements")
        lines.append(
            f"::error title=llama-conformance::{rest} x implementation do not hold: see results.json"
        )
    return lines


def _annotation(cell: Cell) -> str:
    worst = cell.worst
    title = f"{cell.requirement} {cell.implementation} {worst.variant} {worst.dtype}"
    parts = [f"{status_word(worst.status)}: {measured(worst)}".rstrip(": "), worst.reason, worst.repro]
    message = "\n".join(clipped(part.strip(), 1000) for part in parts if part.strip())
    return f"::error title={_property(title)}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _md(text: str) -> str:
    """The text as GitHub shows it literally: whatever could be markup becomes a character reference."""
    return re.sub(r"[^\w \-.,;()/=+'✓✗‼≈↯–○·…]", lambda m: f"&#{ord(m[0])};", one_line(text)).replace(
        "_", "&#95;"
    )


def _verdict_table(run: Mapping[str, Any], records: Sequence[Record]) -> list[str]:
    every = tallies(records, run["implementations"], list(run["requirements"]))
    if not every:
        return []
    standings = [standing for standing in Standing if standing is not Standing.HOLDS]
    names = ["", "implementation", "hold", *standings, "worst headroom"]
    lines = [f"| {' | '.join(names)} |", f"|---|---|{'--:|' * (len(standings) + 1)}---|"]
    for tally in every:
        tightest = tally.tightest
        where = f"{headroom(tightest)} ({place(tightest)})" if tightest else ""
        cells = [
            mark(tally),
            _md(clipped(tally.implementation, _CLIP)),
            f"{tally.holding} of {tally.judged}",
            *(str(len(tally.standing(standing))) for standing in standings),
            _md(clipped(where, _CLIP)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _cell_row(cell: Cell) -> str:
    worst = cell.worst
    texts = [
        f"{SYMBOLS[worst.status]} {status_word(worst.status)}",
        cell.requirement,
        cell.implementation,
        f"{worst.variant}, {worst.dtype}",
        measured(worst),
        str(len(cell.records)),
        worst.reason,
    ]
    return f"| {' | '.join(_md(clipped(text, _CLIP)) for text in texts)} |"


def _section(title: str, items: list[str], room: int, *, table: bool) -> list[str]:
    """A headed list cut to so many bytes; nothing at all where there are no items."""
    if not items:
        return []
    lines = [f"## {title}", ""]
    if table:
        lines += [
            "| | requirement | implementation | where | measured | records | reason |",
            "|---|---|---|---|---|--:|---|",
        ]
    kept = 0
    for item in items:
        if _size(lines) + _size([item]) + _CLIP > room:
            break
        lines.append(item)
        kept += 1
    if kept < len(items):
        lines += ["", f"{len(items) - kept} of {len(items)} left out here; all are in results.json."]
    return [*lines, ""]


def _size(lines: Sequence[str]) -> int:
    return sum(len(line.encode()) + 1 for line in lines)
