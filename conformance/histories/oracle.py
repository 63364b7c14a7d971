"""What is right in a history: logits of one pass over each row, however its tokens came."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from conformance.cases import ModelCase
from conformance.numerics import answers
from conformance.numerics.settings import ORACLE, yardsticks
from conformance.numerics.verdict import budgets

LENGTH = 24  # of a pass; what comes later changes no earlier logits, so longer ones serve many histories

Rows = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Right:
    """The right logits of a batch.

    Args:
        logits: [B, T, V], float64.
        allowed: the budget of each measure.
    """

    logits: Tensor
    allowed: dict[str, float]


def length_of(tokens: int) -> int:
    """How long a pass is made that holds so many tokens."""
    return LENGTH * max(1, -(-tokens // LENGTH))


@functools.lru_cache(maxsize=1024)  # [3, 24, 131] in float64 are 75 kB
def right_of(model: ModelCase, rows: Rows) -> Right:
    """The oracle's logits of a batch of sequences of one length, and what rounding explains of an error.

    Args:
        model: whose weights.
        rows: token ids.
    """
    tokens_BT, dtype = torch.tensor(rows), model.torch_dtype
    logits = answers.model_of(model, ORACLE)(tokens_BT)
    accepted = (answers.model_of(model, setting)(tokens_BT) for setting in yardsticks(dtype))
    return Right(logits=logits, allowed=budgets(accepted, logits, dtype))
