"""The matrix in results.json, beside whatever else the folder's last run left there, and on its page."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

from conformance.checks import Selection
from conformance.records import RESULTS_NAME, read_results, write_atomically, write_results
from conformance.report.page import write_page
from conformance.session import Run, git_state


def check(folder: Path) -> None:
    """Find out now whether a folder's results.json can be added to.

    Raises:
        ValueError: there is one, and it cannot be read.
    """
    if not (folder / RESULTS_NAME).exists():
        return
    try:
        read_results(folder)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"cannot add to {folder / RESULTS_NAME} ({error}); remove it or name another folder (--report)"
        ) from error


def keep(folder: Path, facts: dict[str, Any], matrix: dict[str, Any]) -> Path:
    """Add the matrix to results.json, made if absent, and write the page again; the page's path.

    Args:
        folder: of the report.
        facts: of this run of the command; "started" in seconds since 1970.
        matrix: as Matrix.to_json gives it.
    """
    path = folder / RESULTS_NAME
    started = facts["started"]
    if not path.exists():
        run = Run(
            implementations=[],
            selection=Selection(profile=facts["profile"]),
            deviations=[],
            report=folder,
            started=started,
        )
        write_results(folder, run.facts(facts["command"], interrupted=facts["interrupted"]), [], [])
    content = json.loads(path.read_text(encoding="utf-8"))
    when = dt.datetime.fromtimestamp(started, tz=dt.UTC).isoformat(timespec="seconds")
    content["power"] = {**facts, "started": when, "git": git_state(), **matrix}
    write_atomically(path, json.dumps(content, indent=1, allow_nan=False))
    return write_page(folder, *read_results(folder), content["power"])
