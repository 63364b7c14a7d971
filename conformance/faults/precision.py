"""Models that are right until they are saved and loaded, or run under autocast."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from conformance.faults.catalogue import Fault, model_fault, ops_fault
from conformance.implementations.base import Model
from conformance.implementations.reference import ReferenceModel
from reference_impl import Llama
from reference_impl.norm import rms_norm
from reference_impl.ops import Pair
from reference_impl.rope import inv_freq


class Reloaded(ReferenceModel):
    """Frequencies that are not saved, and come from elsewhere when the model is loaded."""

    def again(self, llama: Llama) -> Tensor:
        """Frequencies of the loaded model."""
        raise NotImplementedError

    def reloaded(self, folder: Path) -> Model:
        """See Model.reloaded."""
        model = super().reloaded(folder)
        assert isinstance(model, ReferenceModel)
        model.llama.inv_freq = self.again(model.llama)
        return model


class WhatWasThere(Reloaded):
    """Built on the meta device and never computed: whatever memory held, most often small numbers."""

    def again(self, llama: Llama) -> Tensor:
        """See Reloaded.again."""
        return torch.full_like(llama.inv_freq, 6.9e-18)


class DefaultTheta(Reloaded):
    """θ is not saved: that of the default config."""

    def again(self, llama: Llama) -> Tensor:
        """See Reloaded.again."""
        return inv_freq(replace(llama.config.rope, rope_theta=1e4), llama.config.head_dim)


class SavedInTheDtype(Reloaded):
    """Saved with the weights, in their dtype."""

    def again(self, llama: Llama) -> Tensor:
        """See Reloaded.again."""
        return llama.inv_freq.to(llama.dtype).to(llama.inv_freq.dtype)


def angles_by_matmul(frequencies: Tensor, positions: Tensor, dtype: torch.dtype) -> Pair:
    """Angles as a matrix product, which autocast takes in 16-bit."""
    if frequencies.dtype != torch.float32:
        angle = positions.to(frequencies.dtype)[..., None] * frequencies
    else:
        angle = (positions.float()[..., None] @ frequencies[None]).to(frequencies.dtype)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def statistic_in_16_bit(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The mean square in float16 under autocast to it, where large squares overflow."""
    kind = x.device.type
    if not torch.is_autocast_enabled(kind) or torch.get_autocast_dtype(kind) != torch.float16:
        return rms_norm(x, weight, eps)
    mean = x.half().pow(2).mean(-1, keepdim=True)
    return (x * torch.rsqrt(mean.float() + eps) * weight).to(x.dtype)


FAULTS: list[Fault] = [
    model_fault("rope.meta-never-computed", "ROPE-11", "classical", WhatWasThere),
    model_fault("rope.theta-not-saved", "ROPE-11", "classical", DefaultTheta),
    model_fault("rope.saved-in-the-dtype", "ROPE-11", "classical", SavedInTheDtype),
    ops_fault(
        "rope.angles-under-autocast", "ROPE-10", "huggingface/transformers#29285", tables=angles_by_matmul
    ),
    ops_fault("norm.statistic-under-autocast", "LOGITS-2", "classical", rms_norm=statistic_in_16_bit),
]
