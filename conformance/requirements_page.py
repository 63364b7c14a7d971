"""docs/requirements.md: every requirement with what proves it, what breaks it, and who deviates from it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from conformance.deviations import Deviation, read_deviations
from conformance.faults import catalogue
from conformance.spec import Requirement, requirements
from conformance.suites import file_of, proofs

PARTS = {
    "NORM": "RMSNorm",
    "MLP": "gated feed-forward network",
    "ROPE": "rotary embedding",
    "SCALE": "frequency scaling",
    "ATTN": "grouped-query attention",
    "MASK": "who sees whom",
    "CACHE": "keys and values kept",
    "BLOCK": "a layer put together",
    "LOGITS": "the whole model",
    "WEIGHT": "loading and export",
    "GRAD": "training",
    "MEM": "memory",
    "TOK": "tokenizers and chat",
    "LADDER": "from GPT to Llama 3.2, rung by rung",
    "REAL": "a trained checkpoint",
    "DIST": "more than one device",
}
HEAD = """# The requirements

What a Llama must do: {requirements} requirements, {checks} checks that prove them, {faults} faults seeded to
break them. Numbers are stable; those that are missing are not live yet. Fault NAME is judged by
`--impl fault:NAME`; it is classical, or one that somebody reported.

Written by `make docs` from `conformance/spec.toml`, the suites, `conformance/faults/` and
`conformance/deviations.toml`; `make test` fails where it is stale.
"""
REPORT = re.compile(r"\b([\w.-]+/[\w.-]+)#(\d+)")
PAPER = re.compile(r"\barXiv (\d{4}\.\d{5})")
NO_CHECK, NO_FAULT = "no check yet", "no fault yet"
# Trained weights are not always at hand, so no fault may need them.
NEEDS_A_CHECKPOINT = frozenset({"REAL-1"})


def page() -> str:
    """The page, in Markdown."""
    known = requirements()
    head = HEAD.format(requirements=len(known), checks=len(proofs()), faults=len(catalogue()))
    deviations = read_deviations()
    parts: dict[str, list[Requirement]] = {}
    for requirement in known.values():
        parts.setdefault(requirement.id.partition("-")[0], []).append(requirement)
    lines = [head, "| part | what | requirements |", "|---|---|---|"]
    for part, members in parts.items():
        numbers = " ".join(f"[{r.id.partition('-')[2]}](#{r.id.lower()})" for r in members)
        lines.append(f"| {part} | {PARTS.get(part, part)} | {numbers} |")
    for part, members in parts.items():
        lines += ["", f"## {part}: {PARTS.get(part, part)}"]
        for member in members:
            lines += section(member, deviations)
    return "\n".join(lines) + "\n"


def section(requirement: Requirement, deviations: Sequence[Deviation]) -> Iterator[str]:
    """The lines of one requirement."""
    yield from ("", f"### {requirement.id}", "", requirement.statement, "")
    if requirement.formula:
        yield from (f"    {requirement.formula}", "")
    yield f"- **source**: {linked(requirement.source)}"
    proving = [proof for proof in proofs() if proof.requirement == requirement.id]
    yield f"- **checks**: {checks_line(proving) or NO_CHECK}"
    declared = [f for f in catalogue().values() if f.requirement == requirement.id]
    faults = [f for f in declared if not f.equivalent]
    none = "none, for it needs trained weights" if requirement.id in NEEDS_A_CHECKPOINT else NO_FAULT
    yield f"- **faults**: {', '.join(f'`{f.name}` ({linked(f.source)})' for f in faults) or none}"
    for f in declared:
        if f.equivalent:
            on = f" on a {f.equivalent_on.upper()}" if f.equivalent_on else ""
            yield f"- **equivalent{on}**: `{f.name}` ({linked(f.source)}): {f.equivalent}"
    concerned = [d for d in deviations if d.requirement == requirement.id]
    for reason, entries in groupby(concerned, lambda d: d.reason):
        who = dict.fromkeys(f"{d.implementation} ({versions_of(d)})" for d in entries)
        yield f"- **deviates**: {', '.join(who)}. {reason}"


def checks_line(proving: Sequence[Any]) -> str:
    """The tests' names as sentences, after the file they stand in."""
    return "; ".join(
        f"in [{file.name}](../suites/{file.name}) {'; '.join(map(sentence, tests))}"
        for file, tests in groupby(proving, file_of)
    )


def sentence(proof: Any) -> str:
    """A test's name, to be read."""
    name: str = proof.__name__
    return name.removeprefix("test_").replace("_", " ")


def versions_of(deviation: Deviation) -> str:
    """The versions a deviation was seen in."""
    return ", ".join(f"{name} {spec}" for name, spec in deviation.versions.items())


def linked(source: str) -> str:
    """A source with its reports and papers as links."""
    with_reports = REPORT.sub(r"[\1#\2](https://github.com/\1/issues/\2)", source)
    return PAPER.sub(r"[arXiv \1](https://arxiv.org/abs/\1)", with_reports)
