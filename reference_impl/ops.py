"""The primitive functions of the model in one record: the only seam of the reference.

`replace(Ops(), rms_norm=...)` gives a model with another norm: a convention, a user's kernel, or a fault
seeded on purpose. Nothing is ever patched, so one model's ops cannot reach another's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from reference_impl import attention, block, mlp, norm, rope

Pair = tuple[Tensor, Tensor]


def positions(offset: int, tokens: int, device: torch.device | None = None) -> Tensor:
    """Positions [T] of the next tokens: offset, offset + 1, …; offset is the number of tokens processed."""
    return torch.arange(offset, offset + tokens, device=device)


def padded_positions(processed_B: Tensor, real_BT: Tensor) -> Tensor:
    """Positions [B, T] where some tokens are padding: real ones are counted on, padding takes none.

    Args:
        processed_B: how many real tokens of each row have gone before.
        real_BT: bool, False = padding.
    """
    return (processed_B[:, None] + real_BT.cumsum(dim=1) - 1).clamp(min=0)


def apply_rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Pair:
    """Rotate q [B, H, T, d] and every head of k [B, G, T, d]; v is left alone."""
    return rope.rotate(q, cos, sin), rope.rotate(k, cos, sin)


def apply_rope_adjacent(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Pair:
    """The same for weights in Meta's pair layout."""
    return rope.rotate_adjacent(q, cos, sin), rope.rotate_adjacent(k, cos, sin)


def scale(head_dim: int) -> float:
    """1/sqrt(d), of the explicit head width."""
    return float(head_dim**-0.5)


def add(residual: Tensor, branch: Tensor) -> Tensor:
    """The residual connection."""
    return residual + branch


@dataclass(frozen=True, kw_only=True)
class Ops:
    """Each field is a function of the reference; see the function it defaults to."""

    rms_norm: Callable[[Tensor, Tensor, float], Tensor] = norm.rms_norm
    act: Callable[[Tensor, str], Tensor] = mlp.act
    gated: Callable[[Tensor, Tensor, str, Ops], Tensor] = mlp.gated
    inv_freq: Callable[..., Tensor] = rope.inv_freq
    tables: Callable[[Tensor, Tensor, torch.dtype], Pair] = rope.tables
    apply_rope: Callable[[Tensor, Tensor, Tensor, Tensor], Pair] = apply_rope
    expand_kv: Callable[[Tensor, int], Tensor] = attention.expand_kv
    mask: Callable[..., Tensor] = attention.causal_mask
    window: Callable[..., Tensor] = attention.in_window
    hide_padding: Callable[[Tensor, Tensor], Tensor] = attention.hide_padding
    softmax: Callable[[Tensor], Tensor] = attention.softmax
    attention: Callable[[Tensor, Tensor, Tensor, Tensor | None, float, Ops], Tensor] = attention.attention
    linear: Callable[[Tensor, Tensor, Tensor | None], Tensor] = functional.linear
    positions: Callable[..., Tensor] = positions
    padded_positions: Callable[[Tensor, Tensor], Tensor] = padded_positions
    scale: Callable[[int], float] = scale
    add: Callable[[Tensor, Tensor], Tensor] = add
    attention_module: Callable[[Tensor, block.Weights, block.Step], Tensor] = block.attention_module
    mlp: Callable[[Tensor, block.Weights, block.Step], Tensor] = block.mlp
    block: Callable[[Tensor, block.Weights, block.Step], Tensor] = block.block
