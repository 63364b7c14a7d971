"""The numbered requirements: what a Llama must do, with formula and source."""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from importlib.resources import files

ASKS = ("op", "law", "part", "whole")  # the more it isolates the earlier


@dataclass(frozen=True, kw_only=True)
class Requirement:
    """One rule.

    Args:
        id: stable, such as "ROPE-6".
        statement: what must hold, in a sentence.
        formula: the same in symbols; "" where there is none.
        source: paper and section, upstream file, or public report.
        asks: what a failure points at: an "op", a "law", a "part" or the "whole", see ASKS.
    """

    id: str
    statement: str
    formula: str = ""
    source: str
    asks: str


@functools.cache
def requirements() -> dict[str, Requirement]:
    """All requirements that are live, by id, in the order of the spec file."""
    data = tomllib.loads(files("conformance").joinpath("spec.toml").read_text(encoding="utf-8"))
    return {id_: Requirement(id=id_, **fields) for id_, fields in data.items()}


def requirement(id_: str) -> Requirement:
    """The requirement of an id.

    Raises:
        ValueError: unknown id; lists those that exist.
    """
    known = requirements()
    if id_ not in known:
        raise ValueError(f"unknown requirement {id_!r}; there are {', '.join(known)}")
    return known[id_]
