"""What is kept of a check: one record per requirement x implementation x variant x dtype.

Everything shown to a person (page, terminal, CI summary) is a rendering of these records; nothing is
computed twice and nothing is shown that is not in results.json.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import json
import math
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from conformance.schema import CHECK, CHECKPOINT, RUN, refused, require, well_formed

SCHEMA = 1
RESULTS_NAME = "results.json"


class Status(enum.StrEnum):
    """How a check ended."""

    PASS = "pass"  # noqa: S105 - a status, not a password
    FAIL = "fail"
    DEVIATION = "deviation"
    UNEXPECTED_PASS = "unexpected-pass"  # noqa: S105 - a status, not a password
    UNSUPPORTED = "unsupported"
    SKIPPED = "skipped"
    ERROR = "error"

    @property
    def is_bad(self) -> bool:
        """Whether it turns the run red."""
        return self in BAD


BAD = frozenset({Status.FAIL, Status.UNEXPECTED_PASS, Status.ERROR})
# Worst first: what a reader should see before anything else.
SEVERITY = (
    Status.ERROR,
    Status.FAIL,
    Status.UNEXPECTED_PASS,
    Status.DEVIATION,
    Status.PASS,
    Status.SKIPPED,
    Status.UNSUPPORTED,
)


@dataclass(kw_only=True)
class Record:
    """The worst thing seen by one check on one implementation, variant and dtype.

    Args:
        requirement: id such as "NORM-1".
        implementation: name such as "huggingface-eager".
        variant: name such as "llama-3.1-8b"; "ops" for checks that need no architecture.
        dtype: "float32", "bfloat16", "float16".
        status: how it ended.
        measure: which error was the worst: "rms", "worst element", "row gain", "exact", …
        error: that error (no unit, scaled by the row); None where nothing could be measured.
        budget: the error allowed.
        headroom: error / budget, 1 is the line; None where nothing could be measured or the budget is 0.
        coordinate: index of the worst element.
        examples: how many cases were judged.
        case: the worst case's spec.
        reason: why, in words, for every status but pass.
        repro: a command line that shows it again.
        facts: what was seen but not judged (a convention, identity to the bit).
        suspect: of a failure, the part of the implementation that is to blame, in words.
        trace: of a failure on a model that shows taps, the steps around the first that is wrong, each with
            tap, measure, added, allowed, headroom, inherited, coordinate and over.
        script: of a failure in a history of caches, that history as a Python file of its own.
    """

    requirement: str
    implementation: str
    variant: str
    dtype: str
    status: Status
    measure: str = ""
    error: float | None = None
    budget: float | None = None
    headroom: float | None = None
    coordinate: tuple[int, ...] = ()
    examples: int = 0
    case: str = ""
    reason: str = ""
    repro: str = ""
    facts: dict[str, str] = field(default_factory=dict)
    suspect: str = ""
    trace: list[dict[str, Any]] = field(default_factory=list)
    script: str = ""

    def __post_init__(self) -> None:
        for name in CHECK:  # names and messages are a user's: they may hold anything
            value = getattr(self, name)
            sound = well_formed(value)
            if sound is not value:
                setattr(self, name, sound)

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What makes a record unique within a run."""
        return (self.requirement, self.implementation, self.variant, self.dtype)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types, with non-finite numbers as None (strict JSON has no NaN)."""
        data = dataclasses.asdict(self)
        data["status"] = str(self.status)
        data["coordinate"] = list(self.coordinate)
        for name in ("error", "budget", "headroom"):
            value = data[name]
            if value is not None and not math.isfinite(value):
                data[name] = None
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any], where: str = "a check") -> Record:
        """The inverse of to_json.

        Args:
            data: what it gave; fields with a default may be absent.
            where: what it is called in an error.

        Raises:
            ValueError: a field is absent, unknown or of another type.
        """
        needed = {f.name for f in fields(cls) if f.default is f.default_factory}  # both are missing
        require(data, {name: shape for name, shape in CHECK.items() if name in needed or name in data}, where)
        unknown = sorted(set(data) - set(CHECK))
        if unknown:
            raise ValueError(f"{where} has {unknown[0]!r}, expected {', '.join(CHECK)} and nothing else")
        if data["status"] not in list(Status):
            raise ValueError(f"{where}.status is {data['status']!r}, expected one of {', '.join(Status)}")
        return cls(**{**data, "status": Status(data["status"]), "coordinate": tuple(data["coordinate"])})


def write_results(
    folder: Path, run: dict[str, Any], records: list[Record], checkpoints: list[dict[str, Any]]
) -> Path:
    """Write results.json so that a reader sees the old file or the new one, never a half.

    Args:
        folder: where reports go; made if absent.
        run: facts about the run: versions, device, threads, profile, seed, git, seconds, interrupted.
        records: one per requirement x implementation x variant x dtype.
        checkpoints: one per checkpoint x implementation x dtype (see reports/README.md).

    Returns:
        The path of results.json.
    """
    folder.mkdir(parents=True, exist_ok=True)
    order = {str(status): rank for rank, status in enumerate(SEVERITY)}
    checks = sorted(
        (record.to_json() for record in records),
        key=lambda c: (order[c["status"]], c["requirement"], c["implementation"], c["variant"], c["dtype"]),
    )
    content = {"schema": SCHEMA, "run": run, "checks": checks, "checkpoints": checkpoints}
    text = json.dumps(well_formed(content), indent=1, allow_nan=False)
    return write_atomically(folder / RESULTS_NAME, text)


def write_atomically(path: Path, text: str) -> Path:
    """Write text to a file of the same folder, then move it into place."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return path


def read_results(folder: Path) -> tuple[dict[str, Any], list[Record], list[dict[str, Any]]]:
    """Read results.json back.

    Returns:
        run, records, checkpoints, as write_results took them.

    Raises:
        OSError: there is no such file.
        ValueError: it is cut off, not JSON, of another schema, or something in it is not as reports/README.md
            has it; says what, where, and what to do.
    """
    content = read_content(folder)
    with told_of(folder):
        require(content, {"run": RUN, "checks": [dict], "checkpoints": [CHECKPOINT]}, "it")
        records = [Record.from_json(c, f"check {n}") for n, c in enumerate(content["checks"])]
    return content["run"], records, content["checkpoints"]


def read_content(folder: Path) -> dict[str, Any]:
    """All that results.json holds; of its schema, but not looked through.

    Raises:
        OSError, ValueError: as read_results does.
    """
    raw = (folder / RESULTS_NAME).read_bytes()
    with told_of(folder):
        try:
            content = json.loads(raw, parse_constant=refused)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"it is no JSON ({error}); was it cut off?") from error
        require(content, {"schema": object}, "it")
        if content["schema"] != SCHEMA:
            raise ValueError(f"schema {content['schema']!r}, expected {SCHEMA}")
    found: dict[str, Any] = content
    return found


@contextlib.contextmanager
def told_of(folder: Path) -> Iterator[None]:
    """Say of a ValueError which file it is about, and what to do.

    Raises:
        ValueError: the same, told in full.
    """
    try:
        yield
    except ValueError as error:
        raise ValueError(
            f"cannot read {folder / RESULTS_NAME}: {error}; run the suites again with this version of "
            "llama-conformance, which write it anew (reports/README.md has its schema)"
        ) from error
