"""Judge whether an implementation of a Llama computes the right function, and show where it goes wrong.

The names below are the public API; suites and users import nothing else. They are loaded on first use, so
that importing the pytest plugin costs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conformance import asks, histories, strategies
    from conformance.cases import (
        AttentionCase,
        Case,
        CompiledAttentionCase,
        GateCase,
        HistoryCase,
        LongAttentionCase,
        MaskedAttentionCase,
        ModelCase,
        NormCase,
        PackedCase,
        PaddedCase,
        PeakCase,
        RotateCase,
        TableCase,
        WidthCase,
    )
    from conformance.checkpoint_trace import explain_checkpoint
    from conformance.checkpoints.config_json import config_from_hf, config_spellings
    from conformance.checks import Check, Selection, check, proves
    from conformance.implementations.base import Implementation, Model, Unsupported
    from conformance.memory import Memory, memory_of
    from conformance.numerics import answers, holding
    from conformance.numerics.allocation import Watch, judge_largest
    from conformance.numerics.conventions import norm_convention
    from conformance.numerics.exchanges import judge_exchanges
    from conformance.numerics.greedy import judge_greedy
    from conformance.numerics.holding import judge_bytes, judge_same
    from conformance.numerics.power import require_power
    from conformance.numerics.settings import EXACT_ORACLE
    from conformance.numerics.tables import READ_AT, judge_inv_freq, judge_tables
    from conformance.numerics.taps import judge_taps
    from conformance.numerics.verdict import (
        Verdict,
        agree,
        exact,
        judge,
        unchanged,
        without_memory,
        worst_of,
    )
    from conformance.real import CHECKPOINT_DTYPES, judge_checkpoint
    from conformance.subject import Subject
    from conformance.tally import skipped
    from conformance.variants import Variant, shrink, variant
    from conformance.weight_maps import FORMATS, format_shapes, formats_of, from_format, to_format
    from conformance.weights import adjacent_rows

_HOMES = {
    "conformance": ("asks", "histories", "strategies"),
    "conformance.cases": (
        "AttentionCase",
        "Case",
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
    ),
    "conformance.checkpoint_trace": ("explain_checkpoint",),
    "conformance.checkpoints.config_json": ("config_from_hf", "config_spellings"),
    "conformance.checks": ("Check", "Selection", "check", "proves"),
    "conformance.implementations.base": ("Implementation", "Model", "Unsupported"),
    "conformance.memory": ("Memory", "memory_of"),
    "conformance.numerics": ("answers", "holding"),
    "conformance.numerics.allocation": ("Watch", "judge_largest"),
    "conformance.numerics.conventions": ("norm_convention",),
    "conformance.numerics.exchanges": ("judge_exchanges",),
    "conformance.numerics.greedy": ("judge_greedy",),
    "conformance.numerics.holding": ("judge_bytes", "judge_same"),
    "conformance.numerics.power": ("require_power",),
    "conformance.numerics.settings": ("EXACT_ORACLE",),
    "conformance.numerics.tables": ("READ_AT", "judge_inv_freq", "judge_tables"),
    "conformance.numerics.taps": ("judge_taps",),
    "conformance.numerics.verdict": (
        "Verdict",
        "agree",
        "exact",
        "judge",
        "unchanged",
        "without_memory",
        "worst_of",
    ),
    "conformance.real": ("CHECKPOINT_DTYPES", "judge_checkpoint"),
    "conformance.subject": ("Subject",),
    "conformance.tally": ("skipped",),
    "conformance.variants": ("Variant", "shrink", "variant"),
    "conformance.weight_maps": ("FORMATS", "format_shapes", "formats_of", "from_format", "to_format"),
    "conformance.weights": ("adjacent_rows",),
}
__all__ = [
    "CHECKPOINT_DTYPES",
    "EXACT_ORACLE",
    "FORMATS",
    "READ_AT",
    "AttentionCase",
    "Case",
    "Check",
    "CompiledAttentionCase",
    "GateCase",
    "HistoryCase",
    "Implementation",
    "LongAttentionCase",
    "MaskedAttentionCase",
    "Memory",
    "Model",
    "ModelCase",
    "NormCase",
    "PackedCase",
    "PaddedCase",
    "PeakCase",
    "RotateCase",
    "Selection",
    "Subject",
    "TableCase",
    "Unsupported",
    "Variant",
    "Verdict",
    "Watch",
    "WidthCase",
    "adjacent_rows",
    "agree",
    "answers",
    "asks",
    "check",
    "config_from_hf",
    "config_spellings",
    "exact",
    "explain_checkpoint",
    "format_shapes",
    "formats_of",
    "from_format",
    "histories",
    "holding",
    "judge",
    "judge_bytes",
    "judge_checkpoint",
    "judge_exchanges",
    "judge_greedy",
    "judge_inv_freq",
    "judge_largest",
    "judge_same",
    "judge_tables",
    "judge_taps",
    "memory_of",
    "norm_convention",
    "proves",
    "require_power",
    "shrink",
    "skipped",
    "strategies",
    "to_format",
    "unchanged",
    "variant",
    "without_memory",
    "worst_of",
]


def __getattr__(name: str) -> Any:
    """Load a public name from where it lives."""
    for home, names in _HOMES.items():
        if name in names:
            if home in {"conformance", "conformance.numerics"}:
                return importlib.import_module(f"{home}.{name}")
            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'conformance' has no attribute {name!r}; it has {', '.join(__all__)}")
