"""A sample of the page, made of invented numbers: `python -m conformance.report.sample reports/sample.html`.

It shows every section on little data. The same command writes the same bytes, so that a test can tell
whether the file in the repository is current.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

from conformance.records import Record, Status, write_atomically
from conformance.report.page import render

NOTE = "A sample of the page: every number on it is invented."
SAMPLE = Path("reports/sample.html")
REQUIREMENTS = {
    "NORM-1": "y = w · x / sqrt(mean(x²) + eps), the mean over the last axis only.",
    "NORM-4": "In 16-bit the statistic of the norm is computed in float32.",
    "ROPE-10": "Tables stay float32 whatever the model's dtype.",
    "MASK-1": "Causal: changing token t leaves the logits before t unchanged.",
    "LOGITS-1": "Full logits are within budget.",
}
IMPLEMENTATIONS = ("reference", "engine-x", "mine.py:build")
VARIANTS = ("llama-2-7b", "llama-3.1-8b")
BUDGETS = {"float32": 4e-6, "bfloat16": 2.4e-2}
# How far the invented file of a user is off, by requirement and dtype.
SLIPS = {
    ("NORM-4", "bfloat16"): (3.4, "row gain", "The statistic of the norm is computed in the input's dtype."),
    ("MASK-1", "float32"): (2.1e5, "worst element", "Logits before the changed token move."),
    ("MASK-1", "bfloat16"): (71.0, "worst element", "Logits before the changed token move."),
    ("LOGITS-1", "float32"): (1.6e5, "rms", "The first tap over budget is layer 0, attn_out."),
    ("LOGITS-1", "bfloat16"): (38.0, "rms", "The first tap over budget is layer 0, attn_out."),
}
ROUNDED = "engine-x 1.2 rounds inv_freq when the model is cast to 16-bit; mended in its 1.3."
_SEED = 11


def results() -> tuple[dict[str, Any], list[Record], list[dict[str, Any]]]:
    """The invented run, its records and its checkpoints; the same at every call."""
    draw = random.Random(_SEED)  # noqa: S311 - a picture, not a secret
    records = [
        _record(draw, requirement, implementation, variant, dtype)
        for requirement in REQUIREMENTS
        for implementation in IMPLEMENTATIONS
        for variant in (("ops",) if requirement.startswith("NORM") else VARIANTS)
        for dtype in BUDGETS
    ]
    checkpoints = [_checkpoint(draw, implementation, "bfloat16") for implementation in IMPLEMENTATIONS[:2]]
    return _run(), records, checkpoints


def power() -> dict[str, Any]:
    """An invented kill matrix of five faults."""
    fates = {
        "norm.halved": ("NORM-1", "killed", {"NORM-1": "killed", "LOGITS-1": "killed"}),
        "norm.narrow": ("NORM-4", "killed", {"NORM-4": "killed", "LOGITS-1": "survived"}),
        "rope.narrow": ("ROPE-10", "killed", {"ROPE-10": "killed", "LOGITS-1": "survived"}),
        "mask.shy": ("MASK-1", "survived", {"MASK-1": "survived", "LOGITS-1": "survived"}),
        "mask.bold": ("MASK-1", "error", {"MASK-1": "error", "LOGITS-1": "killed"}),
    }
    faults = [
        {
            "fault": name,
            "component": name.partition(".")[0],
            "requirement": requirement,
            "source": "somebody/engine-x#12" if name == "mask.bold" else "classical",
            "equivalent": "no case can show it" if name == "mask.shy" else "",
            "equivalent_on": "cpu" if name == "mask.shy" else "",
            "fate": fate,
            "needs": {"killed": "standard" if name == "rope.narrow" else "quick"}.get(fate, ""),
            "check": "test_it",
            "measure": "rms",
            "headroom": 40.0 * len(name) if fate == "killed" else None,
            "case": "NormCase(dtype='float32', n=64)" if fate == "killed" else "",
            "reason": "RuntimeError: too bold" if fate == "error" else "",
            "sits_in": name.partition(".")[0].replace("mask", "attention"),
            "located": {"tap": "layers.0.attn_norm", "component": "norm", "right": name == "norm.halved"}
            if cells["LOGITS-1"] == "killed"
            else None,
            "cells": cells,
        }
        for name, (requirement, fate, cells) in fates.items()
    ]
    return {
        "sentence": "5 faults: 3 killed on their declared requirement, 1 ends in an error, 1 equivalent; "
        "4 of 5 requirements alive; a plain float32 comparison of logits sees 2 of 4",
        "problems": ["mask.bold ends in an error on MASK-1, which is no kill: RuntimeError: too bold"],
        "requirements": list(REQUIREMENTS),
        "plain": "LOGITS-1",
        "faults": faults,
        "command": "python -m conformance power",
        "started": "2026-05-02T14:04:02+00:00",
        "seconds": 8.2,
        "jobs": 2,
        "profile": "standard",
        "full": False,
        "interrupted": False,
        "git": "0000000",
    }


def sample() -> str:
    """The sample page as text."""
    return render(*results(), note=NOTE, power=power())


def main(arguments: list[str]) -> int:
    """Write the sample to the path given, reports/sample.html by default."""
    path = Path(arguments[0]) if arguments else SAMPLE
    if len(arguments) > 1 or not path.parent.is_dir():
        sys.stderr.write(f"got {arguments}, expected one path in an existing folder, such as {SAMPLE}\n")
        return 2
    write_atomically(path, sample())
    return 0


def _record(draw: random.Random, requirement: str, implementation: str, variant: str, dtype: str) -> Record:
    known: dict[str, Any] = {
        "requirement": requirement,
        "implementation": implementation,
        "variant": variant,
        "dtype": dtype,
    }
    if implementation == "engine-x" and requirement == "NORM-4":
        return Record(status=Status.UNSUPPORTED, reason="engine-x offers logits alone, no single op", **known)
    if implementation == "mine.py:build" and requirement == "ROPE-10":
        return Record(status=Status.UNSUPPORTED, reason="mine.py does not show its tables", **known)
    status, reason, measure = Status.PASS, "", draw.choice(("rms", "worst element", "row gain"))
    headroom = min(0.94, draw.lognormvariate(-1.2, 0.5))
    slip = SLIPS.get((requirement, dtype))
    if implementation == "mine.py:build" and slip:
        status = Status.FAIL
        headroom, measure, reason = slip[0] * draw.uniform(0.6, 1.0), slip[1], slip[2]
    if implementation == "engine-x" and requirement == "ROPE-10" and dtype == "bfloat16":
        status, headroom, reason = Status.DEVIATION, draw.uniform(900, 1400), ROUNDED
    seed = draw.randrange(10**6)
    return Record(
        status=status,
        measure=measure,
        error=headroom * BUDGETS[dtype],
        budget=BUDGETS[dtype],
        headroom=headroom,
        coordinate=(draw.randrange(3), draw.randrange(65), draw.randrange(48)),
        examples=draw.randint(6, 24),
        case=f"seed={seed} regime=loud batch=3 tokens=65",
        reason=reason,
        repro=f"pytest suites/ --impl {implementation} --requirement {requirement} --dtype {dtype}",
        facts=_facts(requirement, implementation),
        suspect=SUSPECT if status is Status.FAIL else "",
        trace=_trace() if status is Status.FAIL else [],
        **known,
    )


SUSPECT = "rope: layers.0.k_rot is the first step that is wrong; adds 0.11 (row gain), allowed 2.7e-7"


def _trace() -> list[dict[str, Any]]:
    steps = (
        ("k", 1.3e-7, 1.8e-7),
        ("q_rot", 2.3e-7, 6.1e-8),
        ("k_rot", 1.9e-7, 0.11),
        ("attention", 0.4, 2e-7),
    )
    return [
        {
            "tap": f"layers.0.{tap}",
            "component": "rope" if "rot" in tap else "attention",
            "inherited": inherited,
            "added": added,
            "allowed": 2.7e-7,
            "headroom": added / 2.7e-7,
            "measure": "row gain",
            "coordinate": [0, 1, 50],
            "over": added > 1e-6,
            "reason": "",
            "through": [],
        }
        for tap, inherited, added in steps
    ]


def _facts(requirement: str, implementation: str) -> dict[str, str]:
    if requirement == "NORM-1":
        weighted = implementation == "engine-x"
        return {"cast order of the norm": "weight, then cast" if weighted else "cast, then weight"}
    return {}


def _checkpoint(draw: random.Random, implementation: str, dtype: str) -> dict[str, Any]:
    budget = 0.1 * BUDGETS[dtype]
    rounds = implementation == "engine-x" and dtype == "bfloat16"
    layers = []
    for layer in range(12):
        budget *= draw.uniform(1.02, 1.3)
        headroom = draw.uniform(0.25, 0.5) * (1.4**layer if rounds else 1)
        layers.append(
            {
                "layer": layer,
                "tap": "residual",
                "error": budget * headroom,
                "budget": budget,
                "headroom": headroom,
            }
        )
    oracle = 14.2031
    words = " the ship lay at anchor, and the tide ran out under her."
    return {
        "checkpoint": "an invented 12-layer model",
        "implementation": implementation,
        "dtype": dtype,
        "tokens": 301,
        "perplexity": oracle * (1 + draw.uniform(-2e-3, 2e-3)),
        "oracle_perplexity": oracle,
        "greedy": words.replace("ran out", "went out") if rounds else words,
        "greedy_ids": [],
        "greedy_agrees": not rounds,
        "layers": layers,
    }


def _run() -> dict[str, Any]:
    return {
        "started": "2026-05-02T14:03:11+00:00",
        "seconds": 31.4,
        "interrupted": False,
        "command": "pytest suites/ --impl mine.py:build",
        "profile": "quick",
        "seed": 0,
        "device": "cpu",
        "threads": 1,
        "float32_matmul_precision": "highest",
        "git": "0000000",
        "python": "3.11.9",
        "platform": "Linux x86_64",
        "versions": {"engine-x": "1.2", "torch": "2.13.0"},
        "implementations": list(IMPLEMENTATIONS),
        "variants": list(VARIANTS),
        "requirements": REQUIREMENTS,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
