"""llama-conformance: does my Llama compute the right function, and if not, where does it first go wrong?

The names below are the public API; suites and users import nothing else. They are loaded on first use, so
that importing the pytest plugin costs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conformance import strategies
    from conformance.cases import (
        AttentionCase,
        Case,
        GateCase,
        ModelCase,
        NormCase,
        RotateCase,
        TableCase,
    )
    from conformance.checks import Check, Selection, check
    from conformance.implementations.base import Implementation, Model, Unsupported
    from conformance.numerics import answers
    from conformance.numerics.power import require_power
    from conformance.numerics.settings import EXACT_ORACLE
    from conformance.numerics.tables import judge_inv_freq, judge_tables
    from conformance.numerics.verdict import Verdict, budgets_of, compare, exact, judge
    from conformance.tally import Subject
    from conformance.variants import Variant, shrink, variant, variants

_HOMES = {
    "conformance": ("strategies",),
    "conformance.cases": (
        "AttentionCase",
        "Case",
        "GateCase",
        "ModelCase",
        "NormCase",
        "RotateCase",
        "TableCase",
    ),
    "conformance.checks": ("Check", "Selection", "check"),
    "conformance.implementations.base": ("Implementation", "Model", "Unsupported"),
    "conformance.numerics": ("answers",),
    "conformance.numerics.power": ("require_power",),
    "conformance.numerics.settings": ("EXACT_ORACLE",),
    "conformance.numerics.tables": ("judge_inv_freq", "judge_tables"),
    "conformance.numerics.verdict": ("Verdict", "budgets_of", "compare", "exact", "judge"),
    "conformance.tally": ("Subject",),
    "conformance.variants": ("Variant", "shrink", "variant", "variants"),
}
__all__ = [  # noqa: PLE0604 - strings all of them
    *(name for names in _HOMES.values() for name in names)
]


def __getattr__(name: str) -> Any:
    """Load a public name from where it lives."""
    for home, names in _HOMES.items():
        if name in names:
            if home in {"conformance", "conformance.numerics"}:
                return importlib.import_module(f"{home}.{name}")
            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'conformance' has no attribute {name!r}; it has {', '.join(__all__)}")
