"""How the reference is run when it answers: as oracle, or as one of the accepted yardsticks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from reference_impl import Ops
from reference_impl.attention import attention, fused_attention
from reference_impl.model import Angles
from reference_impl.norm import rms_norm_weight_then_cast

# Reduction orders: as written, and joint permutations of hidden and intermediate indices. In float32 there
# are fewer conventions, so the orders are more.
ORDERS = (0, 1, 2, 3)
ORDERS_16_BIT = (0, 1)


def scale_first(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, ops: Ops) -> Tensor:
    """Attention with the queries scaled before the product."""
    return attention(q * scale, k, v, mask, 1.0, ops)


def scale_both(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, ops: Ops) -> Tensor:
    """Attention with queries and keys scaled by its root each."""
    return attention(q * scale**0.5, k * scale**0.5, v, mask, 1.0, ops)


# What released implementations choose between, freely combined; it differs in 16-bit alone.
CAST_THEN_WEIGHT = Ops()  # Hugging Face eager
CAST_THEN_WEIGHT_FUSED = replace(CAST_THEN_WEIGHT, attention=fused_attention)  # Hugging Face sdpa
WEIGHT_THEN_CAST = replace(CAST_THEN_WEIGHT, rms_norm=rms_norm_weight_then_cast)
WEIGHT_THEN_CAST_FUSED = replace(WEIGHT_THEN_CAST, attention=fused_attention)  # LitGPT
# Where the scores are scaled: behind the product, before it, or half on either side. In float32 that is all
# that differs; in 16-bit the rounding of the scores themselves is larger.
SCALE_FIRST = replace(CAST_THEN_WEIGHT, attention=scale_first)
SCALE_BOTH = replace(CAST_THEN_WEIGHT, attention=scale_both)  # torch's math backend
CONVENTIONS = (CAST_THEN_WEIGHT, WEIGHT_THEN_CAST_FUSED, CAST_THEN_WEIGHT_FUSED, WEIGHT_THEN_CAST)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One way to run the reference.

    Args:
        dtype: what it computes in.
        ops: the conventions.
        order: 0 for the order as written, else the seed of a joint permutation (the same function, other
            roundings).
        angles: "contract" or "exact".
    """

    dtype: torch.dtype
    ops: Ops = CAST_THEN_WEIGHT
    order: int = 0
    angles: Angles = "contract"


ORACLE = Setting(dtype=torch.float64)
EXACT_ORACLE = Setting(dtype=torch.float64, angles="exact")


def yardsticks(dtype: torch.dtype) -> list[Setting]:
    """Every accepted way to compute in a dtype."""
    if dtype.itemsize > 2:
        as_written = [Setting(dtype=dtype, order=order) for order in ORDERS]
        return [*as_written, *(Setting(dtype=dtype, ops=ops) for ops in (SCALE_FIRST, SCALE_BOTH))]
    return [Setting(dtype=dtype, ops=ops, order=order) for ops in CONVENTIONS for order in ORDERS_16_BIT]
