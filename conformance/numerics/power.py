"""Whether a case could show the fault it is there for: a check that cannot fail proves nothing."""

from __future__ import annotations

import functools
from dataclasses import replace

import torch

from conformance.cases import ModelCase
from conformance.numerics import answers
from conformance.numerics.settings import ORACLE
from conformance.numerics.verdict import judge
from reference_impl.ops import positions as right_positions


def restarted(_offset: int, tokens: int, device: torch.device | None = None) -> torch.Tensor:
    """Positions that begin at zero in every chunk."""
    return right_positions(0, tokens, device)


def off_by_one(offset: int, tokens: int, device: torch.device | None = None) -> torch.Tensor:
    """Positions that are one short once something is cached."""
    return right_positions(max(offset - 1, 0), tokens, device)


@functools.lru_cache(maxsize=512)
def require_power(case: ModelCase) -> None:
    """Prove that offsets restarted at zero, and off by one, would be seen on this case.

    Raises:
        ValueError: the oracle with a wrong offset stays within the budget.
    """
    for wrong in (restarted, off_by_one):
        setting = replace(ORACLE, ops=replace(ORACLE.ops, positions=wrong))
        model = answers.model_of(case, setting)
        cache = model.new_cache(case.batch, case.tokens)
        chunks = torch.split(case.token_ids(), list(case.chunks), dim=1)
        logits = torch.cat([model(chunk, cache=cache) for chunk in chunks], dim=1)
        if judge(logits.to(case.torch_dtype), answers.logits, case).passed:
            raise ValueError(f"{case!r} has no power: positions {wrong.__name__} stay within the budget")
