"""Cases: what a check runs on, as compact specs."""

from conformance.cases.base import Case, Changes, changed
from conformance.cases.batches import SIGHTS, MaskedAttentionCase, PackedCase, PaddedCase
from conformance.cases.history import HistoryCase
from conformance.cases.model import PLACES, ModelCase, PeakCase, TableCase
from conformance.cases.ops import (
    AttentionCase,
    CompiledAttentionCase,
    GateCase,
    LongAttentionCase,
    NormCase,
    RotateCase,
    WidthCase,
)

__all__ = [
    "PLACES",
    "SIGHTS",
    "AttentionCase",
    "Case",
    "Changes",
    "CompiledAttentionCase",
    "GateCase",
    "HistoryCase",
    "LongAttentionCase",
    "MaskedAttentionCase",
    "ModelCase",
    "NormCase",
    "PackedCase",
    "PaddedCase",
    "PeakCase",
    "RotateCase",
    "TableCase",
    "WidthCase",
    "changed",
]
