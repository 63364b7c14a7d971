"""Public reports of wrong Llamas: the seeded faults with their mechanism, or the requirement they wait for.

public.toml has an entry a report. It is read strictly: a fault that does not exist, a requirement that is
live by now, or a fault whose source stands nowhere is an error, so it cannot fall behind the catalogue.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from conformance.faults.catalogue import catalogue
from conformance.spec import requirements

HOME = "conformance/faults/public.toml"
KINDS = ("faults", "waits", "outside")
SOURCE = re.compile(r"[\w.-]+/[\w.-]+#\d+|https://\S+")
REQUIREMENT = re.compile(r"[A-Z]+-\d+")


@dataclass(frozen=True, kw_only=True)
class Report:
    """A public report; exactly one of faults, waits and outside is given.

    Args:
        id: component, kind and number, as in "ROPE-LAYOUT-01".
        what: went wrong, in a few words.
        sources: owner/repository#number, or an address.
        faults: names of seeded faults with this mechanism.
        waits: requirements without which it cannot be shown; none of them is live yet.
        outside: why no requirement is about it.
    """

    id: str
    what: str
    sources: tuple[str, ...]
    faults: tuple[str, ...] = ()
    waits: tuple[str, ...] = ()
    outside: str = ""

    @property
    def kind(self) -> str:
        """Which of the three is given."""
        return next(kind for kind in KINDS if getattr(self, kind))

    @property
    def answer(self) -> str:
        """What covers it, what it waits for, or why it is outside."""
        return {
            "faults": ", ".join(self.faults),
            "waits": f"waits for {', '.join(self.waits)}",
            "outside": f"outside: {self.outside}",
        }[self.kind]


def public_reports(text: str | None = None) -> dict[str, Report]:
    """The reports by id.

    Args:
        text: TOML to read instead of the project's own file.

    Raises:
        ValueError: lists everything in it that is malformed, unknown, live by now, or missing.
    """
    own = files("conformance").joinpath("faults/public.toml")
    try:
        entries = tomllib.loads(own.read_text(encoding="utf-8") if text is None else text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{HOME} is no TOML: {error}") from error
    wrong = [problem for id_, entry in entries.items() for problem in malformed(id_, entry)]
    reports = {} if wrong else {id_: report(id_, entry) for id_, entry in entries.items()}
    wrong += [*outdated(reports), *unnamed(reports)] if reports else []
    if wrong:
        raise ValueError(f"{HOME}: {'; '.join(wrong)}")
    return reports


def lines() -> Iterator[str]:
    """The reports as a table for a person, and how many are answered in which way.

    Raises:
        ValueError: as public_reports.
    """
    reports = public_reports().values()
    for each in reports:
        yield f"{each.id:20} {each.sources[0]:46} {each.answer}"
    count = Counter(each.kind for each in reports)
    yield (
        f"{len(reports)} reports: {count['faults']} covered by faults, {count['waits']} waiting for "
        f"requirements, {count['outside']} outside"
    )


def report(id_: str, entry: Mapping[str, Any]) -> Report:
    """An entry that is well formed."""
    lists = {name: tuple(value) for name, value in entry.items() if isinstance(value, list)}
    return Report(id=id_, **{**entry, **lists})


def malformed(id_: str, entry: object) -> Iterator[str]:
    """What is wrong with the shape of an entry, in words."""
    if not isinstance(entry, dict):
        yield f"{id_} is {entry!r}, expected a table [{id_}]"
        return
    given = [kind for kind in KINDS if kind in entry]
    if set(entry) != {"what", "sources", *given} or len(given) != 1:
        yield (
            f"{id_} has the fields {', '.join(sorted(entry))}, expected what, sources and one of "
            f"{', '.join(KINDS)}"
        )
        return
    for name, value in entry.items():
        is_text = isinstance(value, str) and bool(value)
        is_list = isinstance(value, list) and bool(value) and all(isinstance(v, str) for v in value)
        if not (is_text if name in {"what", "outside"} else is_list):
            wanted = "text" if name in {"what", "outside"} else "a list of texts"
            yield f"{id_} has {name} = {value!r}, expected {wanted}"
            return
    for source in entry["sources"]:
        if not SOURCE.fullmatch(source):
            yield f"{id_} has the source {source!r}, expected owner/repository#number or an https address"
    for id_of_one in entry.get("waits", ()):
        if not REQUIREMENT.fullmatch(id_of_one):
            yield f"{id_} waits for {id_of_one!r}, expected the id of a requirement, such as SCALE-2"


def outdated(reports: Mapping[str, Report]) -> Iterator[str]:
    """Faults that do not exist or cannot be shown, and requirements that nobody waits for any more."""
    for each in reports.values():
        for name in each.faults:
            fault = catalogue().get(name)
            if fault is None:
                yield f"{each.id} names the fault {name!r}, which does not exist"
            elif fault.equivalent:
                yield f"{each.id} names the fault {name!r}, which nothing can show: {fault.equivalent}"
        for id_ in each.waits:
            if id_ in requirements():
                yield f"{each.id} waits for {id_}, which is live now: name a fault that falls on it"


def unnamed(reports: Mapping[str, Report]) -> Iterator[str]:
    """Faults whose public source is not among those of a report that names them."""
    told = {(name, source) for each in reports.values() for name in each.faults for source in each.sources}
    for fault in catalogue().values():
        if fault.source != "classical" and (fault.name, fault.source) not in told:
            yield f"the fault {fault.name} comes from {fault.source}, but no report with that source names it"
