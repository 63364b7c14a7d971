"""The attention of llms-from-scratch on q, k and v as they are: its modules with their projections taken out.

Shape suffixes: B batch, T tokens, C heads · d, H query heads, d head width.
"""

# ruff: noqa: PLC0415 - a library is imported by who uses it

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from conformance.implementations import modules
from conformance.implementations.base import Unsupported


def blocked(tokens: int, device: torch.device) -> Tensor:
    """The mask that Llama3Model.forward makes, [T, T] bool; True = not seen."""
    return torch.triu(torch.ones(tokens, tokens, device=device, dtype=torch.bool), diagonal=1)


def with_cache(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """GroupedQueryAttention of kv_cache.llama3: earlier keys and values are its cache.

    Raises:
        Unsupported: more queries than keys, or another scale than 1/sqrt(d).
    """
    from llms_from_scratch.kv_cache.llama3 import GroupedQueryAttention

    past = k.shape[2] - q.shape[2]
    if past < 0:
        raise Unsupported(
            "llms-from-scratch's attention takes queries of its keys' last tokens, "
            f"got {q.shape[2]} on {k.shape[2]}"
        )
    attention = unprojected(GroupedQueryAttention, q, k[:, :, past:], v[:, :, past:], scale)
    cache = (k[:, :, :past], v[:, :, :past]) if past else None
    y_BTC, _ = attention(_of_shape(q), ~mask, *_unrotated(q), cache=cache)
    return modules.split_heads(y_BTC, q.shape[3])


def plain(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """GroupedQueryAttention of llama3.

    Raises:
        Unsupported: another mask than the causal one of as many keys as queries; another scale.
    """
    from llms_from_scratch.llama3 import GroupedQueryAttention

    _require_causal(q, mask, "GroupedQueryAttention of llama3")
    attention = unprojected(GroupedQueryAttention, q, k, v, scale)
    return modules.split_heads(attention(_of_shape(q), ~mask, *_unrotated(q)), q.shape[3])


def fast(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """GroupedQueryAttentionFast, which calls scaled_dot_product_attention.

    Raises:
        Unsupported: see plain.
    """
    from llms_from_scratch.llama3 import GroupedQueryAttentionFast

    _require_causal(q, mask, "GroupedQueryAttentionFast")
    attention = unprojected(GroupedQueryAttentionFast, q, k, v, scale)
    return modules.split_heads(attention(_of_shape(q), *_unrotated(q)), q.shape[3])


class Given(nn.Module):
    """Stands in for a projection: gives a tensor, whatever it is given."""

    def __init__(self, heads_BHTd: Tensor) -> None:
        super().__init__()
        self.y_BTC = heads_BHTd.transpose(1, 2).flatten(2)

    def forward(self, _x: Tensor) -> Tensor:
        """[B, T, C]."""
        return self.y_BTC


def unprojected(kind: Any, q: Tensor, k: Tensor, v: Tensor, scale: float) -> nn.Module:
    """An attention module whose projections give q, k and v of as many tokens, and pass the result on."""
    heads, width = q.shape[1], q.shape[3]
    if not math.isclose(scale, width**-0.5):
        raise Unsupported(f"llms-from-scratch always scales by 1/sqrt({width}), not by {scale:g}")
    with torch.device("meta"):  # the projections are thrown away
        attention: nn.Module = kind(
            d_in=1, d_out=heads * width, num_heads=heads, num_kv_groups=k.shape[1], dtype=q.dtype
        )
    attention.W_query, attention.W_key, attention.W_value = Given(q), Given(k), Given(v)
    attention.out_proj = nn.Identity()
    return attention


def _of_shape(q: Tensor) -> Tensor:
    """An input of as many rows and tokens, of which nothing is read."""
    return q.new_empty(q.shape[0], q.shape[2], 1)


def _unrotated(q: Tensor) -> tuple[Tensor, Tensor]:
    """cos = 1 and sin = 0 [T, d]: what is rotated by them stays as it is, to the bit."""
    ones = q.new_ones(q.shape[2], q.shape[3])
    return ones, torch.zeros_like(ones)


def _require_causal(q: Tensor, mask: Tensor, who: str) -> None:
    wanted = ~blocked(q.shape[2], q.device)
    if mask.shape != wanted.shape or not torch.equal(mask, wanted):
        raise Unsupported(f"{who} of llms-from-scratch is causal over the tokens at hand, and has no cache")
