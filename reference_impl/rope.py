"""Rotary position embedding: frequencies, tables, rotation, and the permutation between pair layouts.

Shape suffixes: B batch, T tokens, H heads, d head width, P = d / 2 pairs.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from reference_impl.norm import statistic_dtype

if TYPE_CHECKING:
    from reference_impl.config import Rope


def inv_freq(rope: Rope, head_dim: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Angle per position of each pair: θ^(−2i/d), then slowed down by the rule of the config.

    linear: f / factor. llama3, with wavelength λ = 2π/f and C0 the original context: f where λ < C0/high,
    f / factor where λ > C0/low, and between them (1−s)·f/factor + s·f with s = (C0/λ − low)/(high − low).

    Args:
        rope: θ and the rule.
        head_dim: d; of a head that is rotated in part, the rotated part takes its place in the formula.
        dtype: what the chain is computed in; float32 is the upstream contract, float64 is exact.

    Returns:
        [P] in dtype.

    Source: Su et al. 2021, arXiv 2104.09864, section 3.2.2; Meta llama-models, models/llama3/model.py,
        apply_scaling; transformers modeling_rope_utils.py.
    """
    rotary_dim = rope.rotary_dim(head_dim)
    i_P = torch.arange(0, rotary_dim, 2, dtype=torch.int64).to(dtype)
    freq_P = 1.0 / (rope.rope_theta ** (i_P / rotary_dim))
    if rope.rope_type == "linear":
        assert rope.factor is not None
        return freq_P / rope.factor
    if rope.rope_type == "llama3":
        return llama3_rule(freq_P, rope)
    return freq_P


def llama3_rule(freq_P: Tensor, rope: Rope) -> Tensor:
    """Keep fast pairs, divide slow ones by the factor, blend between."""
    assert rope.factor is not None
    assert rope.low_freq_factor is not None
    assert rope.high_freq_factor is not None
    assert rope.original_max_position_embeddings is not None
    turns_P = rope.original_max_position_embeddings / (2 * math.pi / freq_P)
    blend_P = (turns_P - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    keep_P = blend_P.clamp(0, 1)
    return (1 - keep_P) * freq_P / rope.factor + keep_P * freq_P


def tables(inv_freq_P: Tensor, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin of position · inv_freq, the product taken in inv_freq's dtype.

    With a float32 inv_freq these are the contract angles that every released model was trained with: at
    position 131072 they are 9e-3 away from exact ones, and that is right. With a float64 inv_freq they
    are exact.

    Args:
        inv_freq_P: [P].
        positions: [...] whole numbers; any values, in any order.
        dtype: of the result.

    Returns:
        cos and sin, each [..., P].
    """
    angle = positions.to(inv_freq_P.dtype)[..., None] * inv_freq_P
    angle = angle.to(torch.promote_types(angle.dtype, statistic_dtype(dtype)))
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the half-split pairs (i, i + P): (a, b) → (a·cos − b·sin, b·cos + a·sin).

    Args:
        x: [..., d]; with tables of fewer than d/2 pairs the first 2P elements turn, the rest passes through.
        cos, sin: [..., P], broadcast against x.

    Returns:
        [..., d], the dtype of x.

    Source: GPT-NeoX and Hugging Face layout; equal to Su et al. up to a permutation of rows (see
        to_half_split).
    """
    turned, passed = x[..., : 2 * cos.shape[-1]], x[..., 2 * cos.shape[-1] :]
    a, b = turned.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin, passed), dim=-1).to(x.dtype)


def rotate_adjacent(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The same for the adjacent pairs (2i, 2i + 1) of Meta's own code and of GGUF files."""
    turned, passed = x[..., : 2 * cos.shape[-1]], x[..., 2 * cos.shape[-1] :]
    a, b = turned[..., 0::2], turned[..., 1::2]
    pairs = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
    return torch.cat((pairs, passed), dim=-1).to(x.dtype)


def to_half_split(weight: Tensor, heads: int) -> Tensor:
    """Reorder the rows of a q or k projection from adjacent to half-split pairs.

    Row rule, within each head: new[s·d/2 + i] = old[2i + s].

    Args:
        weight: [heads · d, ...] (a bias is [heads · d]).
        heads: H for q, G for k. With the wrong count most sizes still work, and the result is wrong.

    Source: transformers convert_llama_weights_to_hf.py, permute.
    """
    rows = weight.shape[0]
    return weight.reshape(heads, rows // heads // 2, 2, -1).transpose(1, 2).reshape(weight.shape)


def to_adjacent(weight: Tensor, heads: int) -> Tensor:
    """The inverse of to_half_split."""
    rows = weight.shape[0]
    return weight.reshape(heads, 2, rows // heads // 2, -1).transpose(1, 2).reshape(weight.shape)


def interleave(x: Tensor) -> Tensor:
    """The elements of q or k [..., d] from half-split to adjacent order, as to_adjacent does with rows."""
    return torch.stack(x.chunk(2, dim=-1), dim=-1).flatten(-2)
