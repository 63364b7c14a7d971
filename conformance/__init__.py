"""Judge whether an implementation of a Llama computes the right function, and show where it goes wrong.

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
    from conformance.checks import Check, Selection, check, proves
    from conformance.implementations.base import Implementation, Model, Unsupported
    from conformance.numerics import answers
    from conformance.numerics.power import require_power
    from conformance.numerics.settings import EXACT_ORACLE
    from conformance.numerics.tables import judge_inv_freq, judge_tables
    from conformance.numerics.verdict import Verdict, agree, exact, judge
    from conformance.real import CHECKPOINT_DTYPES, judge_checkpoint
    from conformance.subject import Subject
    from conformance.tally import skipped
    from conformance.variants import Variant, shrink, variant

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
    "conformance.checks": ("Check", "Selection", "check", "proves"),
    "conformance.implementations.base": ("Implementation", "Model", "Unsupported"),
    "conformance.numerics": ("answers",),
    "conformance.numerics.power": ("require_power",),
    "conformance.numerics.settings": ("EXACT_ORACLE",),
    "conformance.numerics.tables": ("judge_inv_freq", "judge_tables"),
    "conformance.numerics.verdict": ("Verdict", "agree", "exact", "judge"),
    "conformance.real": ("CHECKPOINT_DTYPES", "judge_checkpoint"),
    "conformance.subject": ("Subject",),
    "conformance.tally": ("skipped",),
    "conformance.variants": ("Variant", "shrink", "variant"),
}
__all__ = [
    "CHECKPOINT_DTYPES",
    "EXACT_ORACLE",
    "AttentionCase",
    "Case",
    "Check",
    "GateCase",
    "Implementation",
    "Model",
    "ModelCase",
    "NormCase",
    "RotateCase",
    "Selection",
    "Subject",
    "TableCase",
    "Unsupported",
    "Variant",
    "Verdict",
    "agree",
    "answers",
    "check",
    "exact",
    "judge",
    "judge_checkpoint",
    "judge_inv_freq",
    "judge_tables",
    "proves",
    "require_power",
    "shrink",
    "skipped",
    "strategies",
    "variant",
]


def __getattr__(name: str) -> Any:
    """Load a public name from where it lives."""
    for home, names in _HOMES.items():
        if name in names:
            if home in {"conformance", "conformance.numerics"}:
                return importlib.import_module(f"{home}.{name}")
            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'conformance' has no attribute {name!r}; it has {', '.join(__all__)}")
