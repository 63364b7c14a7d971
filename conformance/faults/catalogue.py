"""The catalogue of faults, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from conformance.implementations.base import Implementation


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A known wrong way.

    Args:
        name: component.what, as in --impl fault:rope.interleaved.
        component: the part of the model it sits in.
        requirement: the id that must fall.
        make: the implementation that has it.
        source: public report, or "classical".
    """

    name: str
    component: str
    requirement: str
    make: Callable[[], Implementation]
    source: str


def catalogue() -> dict[str, Fault]:
    """All faults by name."""
    from conformance.faults import ops  # noqa: PLC0415 - they stand on this module

    return {fault.name: fault for fault in ops.FAULTS}


def implementation(name: str) -> Implementation:
    """The reference with a fault.

    Raises:
        ValueError: unknown fault; lists those that exist.
    """
    faults = catalogue()
    if name not in faults:
        raise ValueError(f"unknown fault {name!r}; there are {', '.join(faults)}")
    return faults[name].make()
