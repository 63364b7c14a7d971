"""The run in words: one sentence, one line per implementation, one block per failure.

What "holds" means is written in conformance/report/standing.py. Needs the standard library alone.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from conformance.records import BAD, Record, Status
from conformance.report.standing import Cell, Standing, Tally, most_telling, tallies, worst_first
from conformance.report.words import (
    SYMBOLS,
    clipped,
    count,
    headroom,
    listed,
    measured,
    number,
    one_line,
    status_word,
    tight,
)

_FEW = 3
STEP = "is the first step that is wrong"  # as conformance/suspects.py puts it
_REASON = 1200


def sentence(
    records: Sequence[Record], implementations: Sequence[str] = (), requirements: Sequence[str] = ()
) -> str:
    """The whole run in one sentence: which requirements do not hold, and for whom all of them hold.

    Args:
        records: of a whole run.
        implementations: their order, as run["implementations"] gives it.
        requirements: their order, as run["requirements"] gives it.
    """
    if not records:
        return "Nothing was judged: no check ran."
    every = tallies(records, implementations, requirements)
    broken = sorted(
        (tally for tally in every if tally.standing(Standing.BROKEN)),
        key=lambda tally: -len(tally.standing(Standing.BROKEN)),
    )
    stale = [tally for tally in every if tally.standing(Standing.STALE)]
    rest = [tally for tally in every if tally.judged and tally not in broken]
    whole = [tally for tally in rest if tally.holding == tally.judged]
    but = [tally for tally in rest if tally not in whole]
    unjudged = [tally.implementation for tally in every if not tally.judged]
    if not broken and not rest:
        return f"Nothing was judged: {count(len(records), 'check')}, all unsupported or skipped."
    parts = []
    if broken:
        parts.append(listed([_broken(tally, tally is broken[0]) for tally in broken]))
    if whole:
        subject = "all hold for" if broken else "Every requirement judged holds for"
        parts.append(f"{subject} {listed([_whole(tally) for tally in whole])}")
    if but:
        parts.append(f"all hold but for listed deviations for {listed([_whole(tally) for tally in but])}")
    if stale:
        parts.append(f"{listed([_stale(tally) for tally in stale])} no longer shows")
    if unjudged:
        parts.append(f"nothing was judged for {listed(unjudged)}")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def verdicts(
    records: Sequence[Record], implementations: Sequence[str] = (), requirements: Sequence[str] = ()
) -> list[str]:
    """One line per implementation: how many requirements hold, the worst headroom, deviations, unsupported.

    Args:
        records: of a whole run.
        implementations: their order, as run["implementations"] gives it.
        requirements: their order, as run["requirements"] gives it.
    """
    every = tallies(records, implementations, requirements)
    width = max((len(tally.implementation) for tally in every), default=0)
    return [f"{mark(tally)} {tally.implementation:<{width}}  {verdict(tally)}" for tally in every]


def mark(tally: Tally) -> str:
    """✗: a requirement does not hold; ↯: a deviation is stale; ≈: one deviates; –: none was judged; or ✓."""
    if tally.standing(Standing.BROKEN):
        return "✗"
    if tally.standing(Standing.STALE):
        return SYMBOLS[Status.UNEXPECTED_PASS]
    if not tally.judged:
        return "–"
    return "≈" if tally.standing(Standing.DEVIATES) else "✓"


def verdict(tally: Tally) -> str:
    """One implementation's standing in a line, without its name."""
    if not tally.judged:
        return f"no requirement judged ({count(len(tally.cells), 'requirement')} unsupported or skipped)"
    broken = [cell.requirement for cell in most_telling(tally.standing(Standing.BROKEN))]
    parts = [f"{tally.holding} of {count(tally.judged, 'requirement')} {_verb(tally.judged)}"]
    if broken:
        parts.append(f"{len(broken)} {'does' if len(broken) == 1 else 'do'} not: {listed(broken, 5)}")
        parts.append(f"start with {start(tally)}")
    parts.append(tight(tally))
    explained = len(tally.standing(Standing.WITH_DEVIATIONS))
    stale = [cell.requirement for cell in tally.standing(Standing.STALE)]
    if stale:
        parts.append(f"listed deviation no longer shows: {listed(stale, 5)}")
    deviating = [cell.requirement for cell in tally.standing(Standing.DEVIATES)]
    if explained:
        parts.append(f"{explained} with deviations")
    if deviating:
        parts.append(f"{listed(deviating, 5)} {'deviates' if len(deviating) == 1 else 'deviate'} throughout")
    apart = len(tally.standing(Standing.NOT_JUDGED))
    if apart:
        parts.append(f"{apart} not judged")
    return "; ".join(filter(None, parts))


def start(tally: Tally) -> str:
    """Where to look first: an op that fails alone, the step that most failures share, or a law."""
    broken = most_telling(tally.standing(Standing.BROKEN))
    if broken[0].alone or not broken[0].worst.case:
        return broken[0].requirement
    heads = [r.suspect.partition("; ")[0] for cell in broken for r in cell.records if r.trace]
    steps = Counter(head for head in heads if STEP in head)
    if not steps:
        return broken[0].requirement
    ((head, _),) = steps.most_common(1)
    return head.replace(f" {STEP}", "")


def failures(
    records: Sequence[Record], limit: int = 10, statements: Mapping[str, str] | None = None
) -> list[str]:
    """A block of text per requirement and implementation that does not hold, the most telling first.

    Args:
        records: of a whole run.
        limit: at most so many blocks; what is left out is counted in one more.
        statements: run["requirements"]: what each requirement says.

    Returns:
        Blocks that stand alone: each names requirement, implementation, variant, dtype, what was measured
        and allowed, the case, the reason and the command that shows it again.
    """
    broken = most_telling(worst_first(records, *BAD))
    blocks = [_block(cell, (statements or {}).get(cell.requirement, "")) for cell in broken[:limit]]
    if len(broken) > limit:
        names = [f"{cell.requirement} · {cell.implementation}" for cell in broken[limit:]]
        blocks.append(f"… and {len(names)} more that do not hold: {listed(names, 12)}")
    return blocks


def heading(run: Mapping[str, Any], records: Sequence[Record]) -> str:
    """The sentence, preceded by the fact that the run was interrupted if it was."""
    text = sentence(records, run["implementations"], list(run["requirements"]))
    if run["interrupted"]:
        return f"Interrupted after {number(run['seconds'])} s and {count(len(records), 'check')}. {text}"
    return text


def _block(cell: Cell, statement: str) -> str:
    worst = cell.worst
    where = one_line(f"{cell.requirement} · {cell.implementation} · {worst.variant} · {worst.dtype}")
    title = f"{SYMBOLS[worst.status]} {status_word(worst.status).upper()}  {where}"
    others = len(cell.records) - 1
    lines = [
        ("", one_line(statement)),
        ("measured", measured(worst)),
        ("reason", clipped(worst.reason.strip(), _REASON)),
        ("suspect", one_line(worst.suspect)),
        ("case", one_line(worst.case)),
        ("again", one_line(worst.repro)),
        ("also", listed([_where(record) for record in cell.records[1:]], _FEW) if others else ""),
    ]
    body = []
    for label, text in lines:
        if text:
            lead = f"  {label:<10}" if label else "  "
            body.append(lead + textwrap.indent(text, " " * 12).lstrip())
    # From the margin on, so that it can be copied as it stands.
    script = ["  script    the history as a Python file:", "", worst.script] if worst.script else []
    return "\n".join([title, *body, *script])


def _where(record: Record) -> str:
    text = headroom(record)
    return f"{record.variant} {record.dtype}" + (f" ({text})" if text else "")


def _broken(tally: Tally, first: bool) -> str:
    names = [cell.requirement for cell in tally.standing(Standing.BROKEN)]
    some = f" ({listed(names)})" if len(names) <= _FEW else ""
    verb = ("does not hold " if len(names) == 1 else "do not hold ") if first else ""
    noun = ("requirement " if tally.judged == 1 else "requirements ") if first else ""
    return f"{len(names)} of {tally.judged} {noun}{verb}for {tally.implementation}{some}"


def _whole(tally: Tally) -> str:
    deviations = len(tally.standing(Standing.WITH_DEVIATIONS))
    notes = f", {deviations} with deviations" if deviations else ""
    return f"{tally.implementation} ({tally.holding} of {tally.judged}{notes})"


def _stale(tally: Tally) -> str:
    names = [cell.requirement for cell in tally.standing(Standing.STALE)]
    return f"the deviation listed for {tally.implementation} on {listed(names, _FEW)}"


def _verb(number_of: int) -> str:
    return "holds" if number_of == 1 else "hold"
