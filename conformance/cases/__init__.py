"""Cases: what a check runs on, as compact specs."""

from conformance.cases.base import Case, Changes, changed
from conformance.cases.model import PLACES, ModelCase, TableCase
from conformance.cases.ops import AttentionCase, GateCase, NormCase, RotateCase, WidthCase

__all__ = [
    "PLACES",
    "AttentionCase",
    "Case",
    "Changes",
    "GateCase",
    "ModelCase",
    "NormCase",
    "RotateCase",
    "TableCase",
    "WidthCase",
    "changed",
]
