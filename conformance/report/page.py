"""The page: reports/index.html, one offline file under 1 MB that renders results.json and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformance.records import Record, write_atomically
from conformance.report.view import WORDS, Detail, view
from conformance.report.words import SYMBOLS, coordinate, status_word
from conformance.schema import well_formed

if TYPE_CHECKING:
    from jinja2 import Environment

PAGE_NAME = "index.html"
PAGE_BYTES = 1_000_000
# From everything down to what any run fits into.
DETAILS = (
    Detail(rows=400, blocks=60, lines=600, marks=40, text=4000, scripts=True, cases=True, reasons=True),
    Detail(rows=400, blocks=60, lines=600, marks=20, text=1500, scripts=False, cases=False, reasons=True),
    Detail(rows=16, blocks=40, lines=400, marks=20, text=1500, scripts=False, cases=False, reasons=True),
    Detail(rows=8, blocks=40, lines=400, marks=20, text=1500, scripts=False, cases=False, reasons=True),
    Detail(rows=3, blocks=25, lines=200, marks=10, text=600, scripts=False, cases=False, reasons=True),
    Detail(rows=0, blocks=10, lines=50, marks=5, text=300, scripts=False, cases=False, reasons=False),
)


def write_page(
    folder: Path,
    run: Mapping[str, Any],
    records: Sequence[Record],
    checkpoints: Sequence[Mapping[str, Any]],
    power: Mapping[str, Any] | None = None,
) -> Path:
    """Write index.html so that a reader sees the old page or the new one, never a half.

    Args:
        folder: where reports go; made if absent.
        run: facts about the run (reports/README.md has the schema).
        records: one per requirement x implementation x variant x dtype.
        checkpoints: one per checkpoint x implementation x dtype.
        power: the kill matrix, where it was measured.

    Returns:
        The path of index.html.

    Raises:
        ValueError: even the shortest form of the page is over 1 MB.
    """
    folder.mkdir(parents=True, exist_ok=True)
    return write_atomically(folder / PAGE_NAME, render(run, records, checkpoints, power=power))


def render(
    run: Mapping[str, Any],
    records: Sequence[Record],
    checkpoints: Sequence[Mapping[str, Any]],
    note: str = "",
    power: Mapping[str, Any] | None = None,
) -> str:
    """The page as text, in the fullest form that stays under 1 MB; arguments as write_page takes them.

    Args:
        note: a remark shown under the sentence.
    """
    template = _environment().get_template("page.html")
    for detail in DETAILS:
        text = well_formed(template.render(view(run, records, checkpoints, detail, note, power)))
        # Cases are full of apostrophes, which need be written so between apostrophes alone: there are none.
        text = text.replace("&#39;", "'")
        if len(text.encode()) < PAGE_BYTES:
            return str(text)
    raise ValueError(
        f"the page takes {len(text.encode())} bytes in its shortest form, expected under {PAGE_BYTES}: "
        f"{len(records)} records of {len(run['implementations'])} implementations are too many for one page; "
        "run fewer at once (--impl, --variant, --requirement); results.json has all of them"
    )


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 - heavy, for the page alone

    made = Environment(
        loader=PackageLoader("conformance.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(WORDS, SYMBOLS=SYMBOLS, status_word=status_word, coordinate=coordinate)
    return made
