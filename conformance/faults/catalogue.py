"""The catalogue of faults, by name: each is the reference with one thing wrong."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from conformance.implementations.base import Implementation, Model
from conformance.implementations.reference import Reference, ReferenceModel
from reference_impl import Llama, LlamaConfig, Ops

Weights = dict[str, Tensor]
Loader = Callable[[LlamaConfig, Weights], tuple[LlamaConfig, Weights]]
HOMES = (
    "norm",
    "mlp",
    "rope",
    "rope_model",
    "beyond",
    "precision",
    "tiles",
    "leftovers",
    "scaling",
    "attention",
    "mask",
    "padding",
    "cache",
    "offsets",
    "slots",
    "sequences",
    "windows",
    "block",
    "logits",
    "weights",
    "tying",
    "memory",
    "formats",
    "equivalent",
)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A known wrong way.

    Args:
        name: component.what, as in --impl fault:rope.interleaved.
        requirement: the id that must fall.
        make: gives the implementation that has it.
        source: the public report, or "classical".
        equivalent: why nothing can show it: its answers are the right ones to the bit; "" where it shows.
        equivalent_on: "cpu" where that is so on a CPU alone; "" everywhere.
    """

    name: str
    requirement: str
    make: Callable[[], Implementation]
    source: str
    equivalent: str = ""
    equivalent_on: Literal["", "cpu"] = ""

    @property
    def component(self) -> str:
        """The part of the model it sits in."""
        return self.name.partition(".")[0]


def ops_fault(name: str, requirement: str, source: str = "classical", **wrong: Any) -> Fault:
    """A fault in one primitive function or several."""
    make = functools.partial(Reference, replace(Ops(), **wrong), f"fault:{name}")
    return Fault(name=name, requirement=requirement, make=make, source=source)


def model_fault(name: str, requirement: str, source: str, model: type[ReferenceModel], **wrong: Any) -> Fault:
    """A fault in what a built model does with what it is made of."""
    make = functools.partial(Reference, replace(Ops(), **wrong), f"fault:{name}", model)
    return Fault(name=name, requirement=requirement, make=make, source=source)


def llama_fault(name: str, requirement: str, source: str, llama: type[Llama]) -> Fault:
    """A fault in how the model goes through its layers."""

    class Wrong(ReferenceModel):
        def __init__(self, right: Llama) -> None:
            super().__init__(llama(right.config, right.weights, ops=right.ops, dtype=right.dtype))

    return model_fault(name, requirement, source, Wrong)


def fresh_fault(name: str, requirement: str, source: str, wrong: Callable[[], dict[str, Any]]) -> Fault:
    """A fault of ops that remember: each implementation made begins with nothing remembered."""

    def make() -> Implementation:
        return Reference(replace(Ops(), **wrong()), f"fault:{name}")

    return Fault(name=name, requirement=requirement, make=make, source=source)


def op_fault(name: str, requirement: str, source: str, **wrong: Any) -> Fault:
    """A fault in a capability that is no part of the model: methods of the implementation, by name."""

    def make() -> Implementation:
        kind = type("Wrong", (Reference,), {n: staticmethod(function) for n, function in wrong.items()})
        made: Implementation = kind(None, f"fault:{name}")
        return made

    return Fault(name=name, requirement=requirement, make=make, source=source)


def load_fault(name: str, requirement: str, source: str, wrong: Loader) -> Fault:
    """A fault in how config and weights are taken in."""
    return Fault(
        name=name,
        requirement=requirement,
        make=functools.partial(WrongLoader, f"fault:{name}", wrong),
        source=source,
    )


class WrongLoader(Reference):
    """The reference behind a loader that changes config or weights on the way in.

    Args:
        name: of the fault.
        wrong: (config, weights) → what is built instead.
    """

    def __init__(self, name: str, wrong: Loader) -> None:
        super().__init__(None, name)
        self._wrong = wrong

    def build(self, config: LlamaConfig, weights: Mapping[str, Tensor]) -> Model:
        """See Implementation.build."""
        return super().build(*self._wrong(config, dict(weights)))

    def rope_tables(self, config: LlamaConfig, positions: Tensor) -> tuple[Tensor, Tensor]:
        """See Implementation.rope_tables."""
        return super().rope_tables(self._wrong(config, {})[0], positions)


@functools.cache
def catalogue() -> dict[str, Fault]:
    """All faults by name."""
    found: dict[str, Fault] = {}
    for home in HOMES:
        for fault in importlib.import_module(f"conformance.faults.{home}").FAULTS:
            assert fault.name not in found, fault.name
            found[fault.name] = fault
    return found


def named(name: str) -> Fault:
    """The fault of a name.

    Raises:
        ValueError: unknown fault; lists those that exist.
    """
    faults = catalogue()
    if name not in faults:
        raise ValueError(f"unknown fault {name!r}; there are {', '.join(faults)}")
    return faults[name]


def implementation(name: str) -> Implementation:
    """The reference with a fault.

    Raises:
        ValueError: unknown fault; lists those that exist.
    """
    return named(name).make()
