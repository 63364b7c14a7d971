"""How numbers, statuses and places are put into words; the same on the page, in the terminal and in CI."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from conformance.records import Record, Status
from conformance.report.standing import Tally

SYMBOLS = {
    Status.PASS: "✓",
    Status.FAIL: "✗",
    Status.ERROR: "‼",
    Status.DEVIATION: "≈",
    Status.UNEXPECTED_PASS: "↯",
    Status.UNSUPPORTED: "–",
    Status.SKIPPED: "○",
}
MEANINGS = {
    Status.PASS: "every case is within budget",
    Status.FAIL: "a case is over budget, or an exact law is broken",
    Status.ERROR: "the check could not be carried out",
    Status.DEVIATION: "a known, explained disagreement; the run stays green",
    Status.UNEXPECTED_PASS: "a listed deviation no longer shows; take it off the list",
    Status.UNSUPPORTED: "the implementation does not offer what the check needs",
    Status.SKIPPED: "not run here",
}


def status_word(status: Status) -> str:
    """The status as a reader sees it."""
    return str(status).replace("-", " ")


def number(value: float | None, absent: str = "–", *, line: bool = False) -> str:
    """Three digits above 1, two below.

    Args:
        value: a headroom, an error or a budget, no unit.
        absent: what stands for None.
        line: it is a headroom, for which 1 is the line: never round on to it.

    Returns:
        Such as "0", "0.31", "0.9996", "12.4", "4070", "4.1e4", "2.3e-7".
    """
    if value is None or not math.isfinite(value):
        return absent
    if value == 0:
        return "0"
    size = abs(value)
    if not 1e-3 <= size < 1e4:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    power = math.floor(math.log10(size))
    digits = max(0, (2 if power >= 0 else 1) - power)
    text = f"{value:.{digits}f}"
    while line and float(text) == 1 != value and digits < 17:
        digits += 1
        text = f"{value:.{digits}f}"
    return text


def percent(share: float | None) -> str:
    """A relative change with its sign, such as "+0.16 %" or "−3.1e-5 %"; empty for None."""
    if share is None or not math.isfinite(share):
        return ""
    sign = "+" if share > 0 else "−" if share < 0 else ""
    return f"{sign}{number(abs(share) * 100)} %"


def coordinate(record: Record) -> str:
    """The index of the worst element, such as "[0, 3, 17]"; empty if there is none."""
    return f"[{', '.join(map(str, record.coordinate))}]" if record.coordinate else ""


def headroom(record: Record) -> str:
    """The headroom, or in a word why there is none; empty where none is expected."""
    if record.headroom is not None:
        return number(record.headroom, line=True)
    if record.status is Status.FAIL:
        return "exact" if record.budget == 0 else record.measure
    return ""


def place(record: Record) -> str:
    """Where a record was taken: requirement, variant and dtype."""
    return f"{record.requirement}, {record.variant}, {record.dtype}"


def measured(record: Record) -> str:
    """One line: the measure, the error, what is allowed and where; empty where nothing was measured."""
    parts = []
    if record.error is not None:
        parts.append(f"{record.measure or 'error'} {number(record.error)}")
    elif record.measure and record.status is Status.FAIL:
        parts.append(record.measure)
    if record.budget is not None:
        parts.append(f"allowed {number(record.budget)}")
    if record.headroom is not None:
        parts.append(f"headroom {number(record.headroom, line=True)}")
    if record.coordinate:
        parts.append(f"worst at {coordinate(record)}")
    return ", ".join(parts)


def count(number_of: int, noun: str, plural: str = "") -> str:
    """Such as "1 record" or "12 records"."""
    return f"{number_of} {noun if number_of == 1 else plural or noun + 's'}"


def listed(names: Sequence[str], most: int = 0) -> str:
    """Such as "a, b and c"; with `most`, "a, b and 7 more"."""
    if most and len(names) > most:
        names = [*names[:most], f"{len(names) - most} more"]
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def clipped(text: str, most: int) -> str:
    """The text, cut where it is too long, saying so."""
    if len(text) <= most:
        return text
    return f"{text[:most].rstrip()} … ({len(text) - most} more characters in results.json)"


def one_line(text: str) -> str:
    """The text with every run of white space made one blank."""
    return " ".join(text.split())


def fact(value: object) -> str:
    """A fact of the run in words."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return json.dumps(value) if isinstance(value, dict) else str(value)


def tight(tally: Tally) -> str:
    """The largest headroom of an implementation and where; empty where nothing was measured."""
    record = tally.tightest
    return f"worst headroom {headroom(record)} ({place(record)})" if record else ""
