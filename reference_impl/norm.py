"""RMSNorm, under the two cast conventions of the field."""

from __future__ import annotations

import torch
from torch import Tensor


def statistic_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype sums are taken in: float32 for 16-bit, the dtype itself otherwise (float64 stays float64)."""
    return torch.promote_types(dtype, torch.float32)


def normalise(x: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x²) + eps) over the last axis, in the statistic's dtype."""
    x = x.to(statistic_dtype(x.dtype))
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm, cast then weight: y = w · x / sqrt(mean(x²) + eps).

    Args:
        x: [..., n], any float dtype.
        weight: [n], in x's dtype.
        eps: inside the root.

    Returns:
        [..., n] in x's dtype.

    Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization", eq. 4; the cast before the
        weight is Meta's llama/model.py and Hugging Face's LlamaRMSNorm.
    """
    return weight * normalise(x, eps).to(x.dtype)


def rms_norm_weight_then_cast(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The same with the weight multiplied before the cast, as LitGPT and torch.nn.RMSNorm do."""
    y = normalise(x, eps)
    return (y * weight.to(y.dtype)).to(x.dtype)
