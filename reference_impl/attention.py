"""Grouped-query attention: the causal mask, the expansion of kv heads, and the weighted mean.

Shape suffixes: B batch, T queries, S keys, H query heads, G kv heads, d head width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from reference_impl.norm import statistic_dtype

if TYPE_CHECKING:
    from reference_impl.ops import Ops


def causal_mask(queries: int, keys: int, device: torch.device | None = None) -> Tensor:
    """Which key each query may see, built for the tokens at hand and aligned bottom-right.

    The last query sees every key; query t sees keys up to t + (S − T). With a cache S > T.

    Returns:
        [T, S] bool, True = attend.
    """
    t = torch.arange(queries, device=device)[:, None]
    s = torch.arange(keys, device=device)[None, :]
    return s <= t + (keys - queries)


def in_window(queries: int, keys: int, window: int, device: torch.device | None = None) -> Tensor:
    """Which keys lie within a sliding window, its own key included: query t sees exactly `window` of them.

    Aligned bottom-right as causal_mask is; what lies ahead is not excluded here.

    Returns:
        [T, S] bool.

    Source: Jiang et al. 2023, arXiv 2310.06825, section 2; transformers masking_utils.py,
    sliding_window_overlay.
    """
    t = torch.arange(queries, device=device)[:, None]
    s = torch.arange(keys, device=device)[None, :]
    return s > t + (keys - queries) - window


def hide_padding(mask: Tensor, real_BS: Tensor) -> Tensor:
    """A mask [T, S] in which no query sees padding, [B, 1, T, S]; real is True where a token is none."""
    return mask & real_BS[:, None, None, :]


def expand_kv(x_BGSd: Tensor, group_size: int) -> Tensor:
    """Give query head h the kv head h // group_size: each is repeated in place, the set is not tiled.

    Source: Ainslie et al. 2023, arXiv 2305.13245, figure 2.
    """
    return x_BGSd.repeat_interleave(group_size, dim=1)


def softmax(scores: Tensor) -> Tensor:
    """Softmax over the keys, in float32 for 16-bit scores, then cast back."""
    return torch.softmax(scores, dim=-1, dtype=statistic_dtype(scores.dtype)).to(scores.dtype)


def attention(
    q_BHTd: Tensor, k_BGSd: Tensor, v_BGSd: Tensor, mask: Tensor | None, scale: float, ops: Ops
) -> Tensor:
    """softmax(q·kᵀ·scale + mask) · v, kv head h // (H/G) for query head h.

    Args:
        q_BHTd: queries, rotated. k_BGSd: keys, rotated. v_BGSd: values.
        mask: bool, broadcast against [B, H, T, S], True = attend; None = attend everywhere. A query that
            sees nothing, as one of padding may, gets zeros: no weights are what is left of its softmax.
        scale: 1/sqrt(d), applied once.
        ops: where softmax and expand_kv are taken from.

    Returns:
        [B, H, T, d].

    Source: Vaswani et al. 2017, eq. 1.
    """
    group_size = q_BHTd.shape[1] // k_BGSd.shape[1]
    k_BHSd = ops.expand_kv(k_BGSd, group_size)
    v_BHSd = ops.expand_kv(v_BGSd, group_size)
    scores_BHTS = q_BHTd @ k_BHSd.transpose(-2, -1) * scale
    if mask is None:
        return ops.softmax(scores_BHTS) @ v_BHSd
    # Minus infinity all along a row would make NaN of it; the lowest number does not, and weighs as little.
    lowest = torch.finfo(scores_BHTS.dtype).min
    weights_BHTS = ops.softmax(scores_BHTS.masked_fill(~mask, lowest))
    return weights_BHTS.masked_fill(~mask, 0) @ v_BHSd


def fused_attention(
    q_BHTd: Tensor, k_BGSd: Tensor, v_BGSd: Tensor, mask: Tensor | None, scale: float, ops: Ops
) -> Tensor:
    """The same with scores and weights kept in float32 for 16-bit inputs, as fused kernels keep them."""
    dtype, wide = q_BHTd.dtype, statistic_dtype(q_BHTd.dtype)
    q_BHTd, k_BGSd, v_BGSd = q_BHTd.to(wide), k_BGSd.to(wide), v_BGSd.to(wide)
    return attention(q_BHTd, k_BGSd, v_BGSd, mask, scale, ops).to(dtype)
