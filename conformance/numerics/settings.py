"""How the reference is run when it answers: as oracle, or as one of the accepted yardsticks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from reference_impl import Ops
from reference_impl.attention import fused_attention
from reference_impl.model import Angles
from reference_impl.norm import rms_norm_weight_then_cast

# Reduction orders: as written, and joint permutations of hidden and intermediate indices. In float32 all
# conventions are one, so the orders are more.
ORDERS = {torch.float32: (0, 1, 2, 3)}
ORDERS_16_BIT = (0, 1)


# What released implementations choose between, freely combined; it differs in 16-bit alone.
CAST_THEN_WEIGHT = Ops()  # Hugging Face eager
CAST_THEN_WEIGHT_FUSED = replace(CAST_THEN_WEIGHT, attention=fused_attention)  # Hugging Face sdpa
WEIGHT_THEN_CAST = replace(CAST_THEN_WEIGHT, rms_norm=rms_norm_weight_then_cast)
WEIGHT_THEN_CAST_FUSED = replace(WEIGHT_THEN_CAST, attention=fused_attention)  # LitGPT
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
    conventions = CONVENTIONS[:1] if dtype == torch.float32 else CONVENTIONS
    orders = ORDERS.get(dtype, ORDERS_16_BIT)
    return [Setting(dtype=dtype, ops=ops, order=order) for ops in conventions for order in orders]
