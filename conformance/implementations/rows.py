"""Prompts of different lengths in one batch: filler behind them moved in front of them, and back.

Shape suffixes: B batch, T tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor


class LeftPadded:
    """Prompts that end together, as libraries want them that decode all rows at once.

    Args:
        tokens_BT: prompts from the left, filler behind them.
        lengths_B: tokens of each prompt.

    Attributes:
        tokens: [B, T], the filler in front.
        real: [B, T] bool, False = filler.
    """

    def __init__(self, tokens_BT: Tensor, lengths_B: Tensor) -> None:
        tokens = tokens_BT.shape[1]
        self._places = torch.arange(tokens, device=tokens_BT.device)
        self._moved = (tokens - lengths_B)[:, None]
        self.tokens = tokens_BT.gather(1, (self._places - self._moved) % tokens)
        self.real = self._places >= self._moved

    def back(self, values_BTX: Tensor) -> Tensor:
        """What was computed for the tokens, in the order in which they were given."""
        came_from = (self._places + self._moved) % len(self._places)
        return values_BTX.gather(1, came_from[..., None].expand_as(values_BTX))
