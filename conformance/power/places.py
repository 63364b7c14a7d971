"""Where a killed fault is: the component that a trace of the killing case names, against the fault's own."""

from __future__ import annotations

from dataclasses import dataclass

from conformance.case_spec import parse_case
from conformance.cases import ModelCase
from conformance.faults import Fault
from conformance.implementations.base import Unsupported
from conformance.subject import Subject
from conformance.tally import describe_exception

# Requirements whose verdict does not say where: the others name the part in asking for it.
COMPARISONS = ("LOGITS-1", "LOGITS-2", "BLOCK-1")
# Component of a fault → the part of a Llama whose step goes wrong first.
PARTS = {"scale": "rope", "mask": "attention"}
# Faults that sit in another part than their name begins with, by the first step that they change.
SITS_IN = {
    "rope.v-turned": "attention",
    "block.q-biased": "attention",
    "block.v-1-percent": "attention",
    "block.heads-not-brought-back": "attention",
    "block.gated-in-8-bit": "mlp",
    "block.parallel": "norm",  # what the second branch is given is not its norm
    "block.norm-shared": "norm",
    "block.last-layer-unrotated": "rope",
    "block.embedding-scaled": "embedding",
    "logits.wrong-in-fp16": "attention",  # every projection, q the first
    "logits.wrong-at-33": "attention",
    "logits.first-norms-weight": "norm",
    "weights.norms-exchanged": "norm",
    "weights.norm-reused": "norm",
    "weights.norm-idle": "norm",
    "weights.layer-0-everywhere": "norm",
    "weights.layers-exchanged": "norm",
    "weights.gate-up-exchanged": "mlp",
    "weights.k-v-exchanged": "attention",
    "weights.k-for-v": "attention",
    "weights.k-from-q": "attention",
    "weights.qk-permuted": "attention",
    "weights.k-permuted-with-h": "attention",
    "weights.v-permuted": "attention",
    "weights.default-heads": "attention",
    "weights.shards-stacked": "embedding",
    "weights.rounded": "embedding",
    "weights.tied-although-untied": "logits",
    "weights.tie-flag-lost": "logits",
    "weights.tied-in-one": "logits",
}


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a trace puts a fault.

    Args:
        tap: of the first step that is wrong; "" where none is.
        component: its part of a Llama; "" where none is.
        right: whether that is the fault's own.
    """

    tap: str
    component: str
    right: bool


def component_of(fault: Fault) -> str:
    """The part of a Llama a fault is to be found in."""
    return SITS_IN.get(fault.name) or PARTS.get(fault.component, fault.component)


def place_of(fault: Fault, case: str) -> Place | None:
    """Trace a case on a fault; None where its model shows no taps.

    Args:
        fault: the implementation that is wrong.
        case: spec of the case that kills it.
    """
    from conformance.tracing import trace  # noqa: PLC0415 - only what was killed is traced

    parsed = parse_case(case)
    if not isinstance(parsed, ModelCase):
        return None
    try:
        found = trace(Subject(fault.make()), parsed)
    except Unsupported:
        return None
    except Exception as error:  # noqa: BLE001 - what a fault raises where it is watched places it nowhere
        return Place(tap="", component=f"no trace: {describe_exception(error)}", right=False)
    right = found.component == component_of(fault)
    return Place(tap=found.suspect, component=found.component, right=right)
