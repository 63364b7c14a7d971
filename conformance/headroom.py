"""How much of the budget right implementations use: on random cases, which K is measured by, and in a run."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from conformance import asks
from conformance.cases import AttentionCase, Case, GateCase, ModelCase, NormCase, RotateCase
from conformance.checks import Selection
from conformance.implementations.base import Unsupported
from conformance.implementations.registry import FAULT_PREFIX
from conformance.inputs import PATTERNS
from conformance.numerics import answers
from conformance.numerics.verdict import K, judge
from conformance.records import Record, Status
from conformance.report.words import number
from conformance.spec import requirements
from conformance.subject import Subject
from conformance.weights import REGIMES

Dice = random.Random
Ask = Callable[[Subject, Any], Tensor]


def rotated(subject: Subject, case: RotateCase) -> Tensor:
    """Rotated q, then k, along the heads."""
    return torch.cat(asks.apply_rope(subject, case), dim=1)


def model_case(dice: Dice, dtype: str) -> ModelCase:
    """Any small model on any batch."""
    variant, shape = dice.choice(Selection().smalls())
    return ModelCase(
        dtype=dtype,
        seed=dice.randrange(10**6),
        variant=variant,
        shape=shape,
        regime=dice.choice(REGIMES),
        batch=dice.randint(1, 3),
        tokens=dice.randint(2, 80),
        layer=dice.randint(0, 1),
    )


def norm_case(dice: Dice, dtype: str) -> NormCase:
    """Any rows."""
    return NormCase(
        dtype=dtype,
        seed=dice.randrange(10**6),
        n=dice.choice([2, 8, 48, 129, 1024]),
        rows=dice.randint(1, 7),
        eps=dice.choice([1e-5, 1e-6]),
        pattern=dice.choice(PATTERNS),
        scale=dice.choice([1.0, 1e-3, 300.0]),
    )


def gate_case(dice: Dice, dtype: str) -> GateCase:
    """Any gate and up."""
    return GateCase(
        dtype=dtype,
        seed=dice.randrange(10**6),
        width=dice.choice([1, 33, 80]),
        rows=dice.randint(1, 7),
        pattern=dice.choice(PATTERNS),
        scale=dice.choice([1e-3, 1.0, 10.0]),
    )


def rotate_case(dice: Dice, dtype: str) -> RotateCase:
    """Any q and k at any positions."""
    return RotateCase(
        dtype=dtype,
        seed=dice.randrange(10**6),
        kv_heads=dice.choice([1, 2, 3, 6]),
        head_dim=dice.choice([2, 8, 16, 64]),
        tokens=dice.randint(1, 17),
        start=dice.randrange(8192),
        pattern=dice.choice(PATTERNS),
    )


def attention_case(dice: Dice, dtype: str) -> AttentionCase:
    """Any heads and lengths."""
    return AttentionCase(
        dtype=dtype,
        seed=dice.randrange(10**6),
        kv_heads=dice.choice([1, 2, 3, 6]),
        head_dim=dice.choice([8, 16, 32]),
        tokens=dice.randint(1, 65),
        past=dice.choice([0, 7, 64]),
        pattern=dice.choice(PATTERNS),
        gain=dice.choice([0.1, 2.0, 10.0]),
    )


QUESTIONS: dict[str, tuple[Callable[[Dice, str], Case], Ask, Any]] = {
    "rms_norm": (norm_case, asks.rms_norm, answers.rms_norm),
    "silu_mul": (gate_case, asks.silu_mul, answers.silu_mul),
    "apply_rope": (rotate_case, rotated, answers.apply_rope),
    "attention_core": (attention_case, asks.attention_core, answers.attention_core),
    "attention_module": (model_case, asks.attention_module, answers.attention_module),
    "mlp": (model_case, asks.mlp, answers.mlp),
    "logits": (model_case, asks.logits, answers.logits),
}


def survey(subjects: list[Subject], dtypes: tuple[str, ...], cases: int, seed: int) -> Iterator[list[str]]:
    """Rows of (question, dtype, implementation, cases, p50, p99, max), the last three in yardsticks.

    A value is headroom · K: the K that would have been needed; K itself is the line.

    Args:
        subjects: implementations that are right.
        dtypes: names.
        cases: random cases per question and dtype.
        seed: of the cases.
    """
    for question, (make, ask, answer) in QUESTIONS.items():
        for dtype in dtypes:
            dice = random.Random(f"{question} {dtype} {seed}")  # noqa: S311 - cases, not secrets
            needed: dict[str, list[float]] = {}
            for _ in range(cases):
                case = make(dice, dtype)
                for subject in subjects:
                    subject.forget()
                    try:
                        verdict = judge(ask(subject, case), answer, case)
                    except Unsupported:
                        continue
                    value = float("inf") if verdict.headroom is None else K * verdict.headroom
                    needed.setdefault(subject.implementation.name, []).append(value)
            for name, values in needed.items():
                p50, p99 = np.percentile(values, [50, 99])
                yield [
                    question,
                    dtype,
                    name,
                    str(len(values)),
                    f"{p50:.2f}",
                    f"{p99:.2f}",
                    f"{max(values):.2f}",
                ]


def used(records: Iterable[Record]) -> list[Record]:
    """The records of a run that say how much of the budget a right implementation used, in the spec's order.

    Those that pass and were measured; what a seeded fault passes says nothing about right ones.

    Raises:
        ValueError: there are none.
    """
    order = {id_: at for at, id_ in enumerate(requirements())}
    found = [
        r
        for r in records
        if r.status is Status.PASS
        and r.headroom is not None
        and not r.implementation.startswith(FAULT_PREFIX)
    ]
    if not found:
        raise ValueError(
            "no record of the run passes with a measured headroom; expected a run of right implementations, "
            "such as python -m conformance check"
        )
    return sorted(found, key=lambda r: (order.get(r.requirement, len(order)), r.requirement, r.dtype))


def spread(records: Iterable[Record]) -> Iterator[list[str]]:
    """Rows of (requirement, dtype, records, p50, p99, max), the last three in budgets: 1 is the line.

    Args:
        records: as used() gives them; each holds the worst of its cases.
    """
    groups: dict[tuple[str, str], list[float]] = {}
    for record in records:
        groups.setdefault((record.requirement, record.dtype), []).append(record.headroom or 0.0)
    for (requirement, dtype), values in groups.items():
        figures = (*np.percentile(values, [50, 99]), max(values))
        yield [requirement, dtype, str(len(values)), *(number(float(f), line=True) for f in figures)]


def closest(records: Iterable[Record]) -> str:
    """The record that came closest to the line, with its case."""
    r = max(records, key=lambda r: r.headroom or 0.0)
    return (
        f"closest to the line: {number(r.headroom, line=True)} ({r.measure}), {r.requirement} on "
        f"{r.implementation}, {r.variant}, {r.dtype}: {r.case}"
    )
