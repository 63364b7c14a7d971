"""Known, explained disagreements of released libraries: expected, shown first among the passes, never hidden.

Nothing is excused in code. A deviation names requirement, implementation, variant, dtype, the versions it was
seen in, and the reason. Whether an entry is still borne out is decided over a whole run: one that no longer
shows is an unexpected pass, and one that fits nothing is stale; both are red.
"""

from __future__ import annotations

import fnmatch
import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from conformance.implementations import registry
from conformance.records import Record, Status
from conformance.schema import require
from conformance.spec import requirement

FIELDS = {
    **dict.fromkeys(("requirement", "implementation", "variant", "dtype"), str),
    "versions": {...: str},
    "reason": str,
}


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """One entry of a deviations file.

    Args:
        requirement, implementation: exact names.
        variant, dtype: names or shell patterns ("*").
        versions: distribution → version specifier, such as {"litgpt": ">=0.5.13,<0.6"}; all must hold.
        reason: who is right, and why.
        source: file the entry stands in.
    """

    requirement: str
    implementation: str
    variant: str
    dtype: str
    versions: dict[str, str]
    reason: str
    source: str = ""

    def fits(self, record: Record) -> bool:
        """Whether it speaks of this record."""
        return (
            record.requirement == self.requirement
            and record.implementation == self.implementation
            and fnmatch.fnmatchcase(record.variant, self.variant)
            and fnmatch.fnmatchcase(record.dtype, self.dtype)
        )

    def applies(self, versions: dict[str, str]) -> bool:
        """Whether the installed versions are the ones it was seen in."""
        return all(
            name in versions and SpecifierSet(spec).contains(Version(versions[name]), prereleases=True)
            for name, spec in self.versions.items()
        )


def read_deviations(path: Path | None = None) -> list[Deviation]:
    """The project's own deviations, and those of a user's file on top.

    Raises:
        ValueError: the file is no TOML or holds something else, an entry lacks a field, has an unknown one or
            one of another type, its requirement or implementation does not exist, or a version specifier is
            malformed; names the file and the entry.
    """
    own = files("conformance").joinpath("deviations.toml")
    found = _parse(own.read_text(encoding="utf-8"), "conformance/deviations.toml")
    if path is not None:
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise ValueError(f"cannot read the deviations file {path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is no TOML, which is UTF-8: {error}") from error
        found += _parse(text, str(path))
    return found


def _parse(text: str, source: str) -> list[Deviation]:
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{source} is no TOML: {error}") from error
    entries = content.pop("deviation", [])
    if content or not isinstance(entries, list):
        found = f"holds {', '.join(map(repr, content))}" if content else f"deviation is {entries!r}"
        raise ValueError(f"{source}: {found}, expected entries [[deviation]] and nothing else")
    return [_entry(entry, source, f"{source}, deviation {n}") for n, entry in enumerate(entries, start=1)]


def _entry(entry: Any, source: str, where: str) -> Deviation:
    if not isinstance(entry, dict) or set(entry) != set(FIELDS):
        there = f"fields {sorted(entry)}" if isinstance(entry, dict) else repr(entry)
        raise ValueError(f"{where}: {there}, expected exactly {sorted(FIELDS)}")
    try:
        require(entry, FIELDS, "it")
        requirement(entry["requirement"])
        _require_single(entry["implementation"])
        for spec in entry["versions"].values():
            SpecifierSet(spec)
    except (InvalidSpecifier, ValueError) as error:
        raise ValueError(f"{where}: {error}") from error
    return Deviation(**entry, source=source)


def _require_single(name: str) -> None:
    """Require the name of one implementation, as records have it; it need not be installed."""
    if name in registry.GROUPS:
        raise ValueError(
            f"{name!r} is several; an entry each for {', '.join(registry.GROUPS[name])} is needed"
        )
    if name not in registry.BUILTIN:
        registry.expand([name])
    if name.startswith(registry.FAULT_PREFIX):
        from conformance.faults import named  # noqa: PLC0415 - rarely asked for

        named(name.removeprefix(registry.FAULT_PREFIX))


def apply(
    records: Sequence[Record], deviations: Sequence[Deviation], versions: dict[str, str]
) -> list[Record]:
    """Records in which a failure that an entry explains is a deviation."""
    return [_apply(record, deviations, versions) for record in records]


def _apply(record: Record, deviations: Sequence[Deviation], versions: dict[str, str]) -> Record:
    if record.status not in {Status.FAIL, Status.ERROR}:
        return record
    for deviation in deviations:
        if deviation.fits(record) and deviation.applies(versions):
            reason = f"{deviation.reason} [{record.reason}]" if record.reason else deviation.reason
            return replace(record, status=Status.DEVIATION, reason=reason)
    return record


def outdated(
    records: Sequence[Record], deviations: Sequence[Deviation], versions: dict[str, str]
) -> list[Record]:
    """What a whole run says against its deviations file: unexpected passes, and entries that fit nothing.

    An entry with patterns is borne out by one deviation among the records it fits.

    Args:
        records: of a whole, unfiltered run.
        deviations: the entries.
        versions: of what is installed.

    Returns:
        The passes of entries that no longer show, as unexpected passes; an error for each stale entry.
    """
    judged = {(r.requirement, r.implementation) for r in records if r.status is not Status.SKIPPED}
    found: list[Record] = []
    for entry in deviations:
        if not entry.applies(versions) or (entry.requirement, entry.implementation) not in judged:
            continue
        fitting = [r for r in records if entry.fits(r)]
        if not fitting:
            found.append(_stale(entry))
        elif all(r.status is Status.PASS for r in fitting):
            reason = f"listed in {entry.source} as a deviation, but it holds; remove the entry"
            found += [replace(r, status=Status.UNEXPECTED_PASS, reason=reason, examples=0) for r in fitting]
    return found


def _stale(entry: Deviation) -> Record:
    return Record(
        requirement=entry.requirement,
        implementation=entry.implementation,
        variant=entry.variant,
        dtype=entry.dtype,
        status=Status.ERROR,
        reason=f"stale deviation in {entry.source}: it fits no record of this run; remove or mend it",
    )


def draft(records: Sequence[Record], versions: dict[str, str]) -> str:
    """A deviations file for the failures of a run, to be completed by hand: the reason is the point of it."""
    blocks = [
        "\n".join(
            [
                "[[deviation]]",
                f"requirement = {_text(r.requirement)}",
                f"implementation = {_text(r.implementation)}",
                f"variant = {_text(r.variant)}",
                f"dtype = {_text(r.dtype)}",
                "versions = { "
                + ", ".join(f'{n} = "=={v}"' for n, v in sorted(versions.items()) if n in _LIBRARIES)
                + " }",
                'reason = "TODO: who is right, and why"',
            ]
        )
        for r in records
        if r.status in {Status.FAIL, Status.ERROR}
    ]
    return "\n\n".join(blocks) + "\n" if blocks else ""


_LIBRARIES = {"torch", "transformers", "litgpt", "llms-from-scratch"}


def _text(name: str) -> str:
    """A name as TOML writes it, quotes and backslashes escaped."""
    return json.dumps(name, ensure_ascii=False).replace("\x7f", "\\u007f")
