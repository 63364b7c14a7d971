"""Addresses within the page: the same name gives the same address in every run."""

from __future__ import annotations

import re
from collections.abc import Iterable

SECTIONS = (
    "verdict",
    "failures",
    "deviations",
    "matrix",
    "headroom",
    "checkpoints",
    "power",
    "facts",
    "records",
    "environment",
)


def anchors(names: Iterable[str]) -> dict[str, str]:
    """Name to address: lower case, runs of anything but letters and digits as one hyphen, no two alike."""
    taken = set(SECTIONS)
    found: dict[str, str] = {}
    for name in names:
        stem = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "unnamed"
        address, again = stem, 1
        while address in taken:
            again += 1
            address = f"{stem}-{again}"
        taken.add(address)
        found[name] = address
    return found
