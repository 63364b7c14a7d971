"""Wrong norms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from conformance.faults.catalogue import Fault, fresh_fault, model_fault, ops_fault
from conformance.implementations.reference import ReferenceModel
from reference_impl import Llama
from reference_impl.block import Step, Tap, Weights, block, no_tap
from reference_impl.norm import rms_norm, statistic_dtype


def wide(x: Tensor) -> Tensor:
    """x in the dtype of the statistic."""
    return x.to(statistic_dtype(x.dtype))


def eps_outside(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """eps added to the root instead of under it."""
    y = wide(x)
    return weight * (y / (y.pow(2).mean(-1, keepdim=True).sqrt() + eps)).to(x.dtype)


def fixed_eps(value: float) -> object:
    """The config's eps ignored."""
    return lambda x, weight, _eps: rms_norm(x, weight, value)


def unbiased(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Divided by n − 1."""
    y, n = wide(x), x.shape[-1]
    mean = y.pow(2).sum(-1, keepdim=True) / max(n - 1, 1)
    return weight * (y * torch.rsqrt(mean + eps)).to(x.dtype)


def centred(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """LayerNorm without its bias."""
    return rms_norm((wide(x) - wide(x).mean(-1, keepdim=True)).to(x.dtype), weight, eps)


def over_rows(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The mean taken over the rows as well."""
    y = wide(x)
    return weight * (y * torch.rsqrt(y.pow(2).mean((-2, -1), keepdim=True) + eps)).to(x.dtype)


def no_upcast(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Everything in the dtype of x."""
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))


def narrow_sum(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The squares added up one by one in 16 bit."""
    if x.dtype == torch.float32:
        return rms_norm(x, weight, eps)
    total = x.new_zeros(x.shape[:-1])
    for column in (wide(x).pow(2) / x.shape[-1]).unbind(-1):
        total = (wide(total) + column).to(x.dtype)
    return weight * (wide(x) * torch.rsqrt(wide(total)[..., None] + eps)).to(x.dtype)


def last_missing(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The last element of a row left out of the mean."""
    y = wide(x)
    mean = y[..., :-1].pow(2).sum(-1, keepdim=True) / x.shape[-1]
    return weight * (y * torch.rsqrt(mean + eps)).to(x.dtype)


def first_row_only(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Right for the first row, every later one scaled by the first one's statistic."""
    y = wide(x)
    mean = y.pow(2).mean(-1, keepdim=True)
    return weight * (y * torch.rsqrt(mean.narrow(-2, 0, 1) + eps)).to(x.dtype)


def widened(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The float32 of the statistic handed on."""
    return rms_norm(x, weight, eps).to(statistic_dtype(x.dtype))


def narrow_weight(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The weight kept in 8 bit."""
    return rms_norm(x, weight.to(torch.float8_e4m3fn).to(x.dtype), eps)


def eps_of_a_default(x: Tensor, weights: Weights, step: Step) -> Tensor:
    """The norms of the layers built with the default eps, the last norm alone with the config's."""
    return block(x, weights, replace(step, config=replace(step.config, rms_norm_eps=1e-5)))


class LastNormOnItsOwn(Llama):
    """A Llama whose last norm was built without the config's eps."""

    def unembed(self, x_BTD: Tensor, tap: Tap = no_tap) -> Tensor:
        """See Llama.unembed."""
        config = replace(self.config, rms_norm_eps=1e-6)
        return Llama(config, self.weights, ops=self.ops, dtype=self.dtype).unembed(x_BTD, tap)


class DefaultEpsAtTheEnd(ReferenceModel):
    """The model of it."""

    def __init__(self, llama: Llama) -> None:
        super().__init__(LastNormOnItsOwn(llama.config, llama.weights, ops=llama.ops, dtype=llama.dtype))


def over_batch(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The mean taken over the batch as well, where there is one."""
    y = wide(x)
    axes = (0, -1) if x.ndim == 3 else (-1,)
    return weight * (y * torch.rsqrt(y.pow(2).mean(axes, keepdim=True) + eps)).to(x.dtype)


def twice(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normed, and normed again: where rows are large enough for eps not to matter, nothing shows."""
    return rms_norm(rms_norm(x, torch.ones_like(weight), eps), weight, eps)


def stale_buffer() -> dict[str, Any]:
    """What is handed out is the buffer of the call before, where that had the same shape."""
    written: dict[tuple[object, ...], Tensor] = {}

    def wrong(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        y = rms_norm(x, weight, eps)
        before = written.get((x.shape, x.dtype), y)
        written[x.shape, x.dtype] = y
        return before

    return {"rms_norm": wrong}


FAULTS: list[Fault] = [
    ops_fault("norm.eps-outside", "NORM-3", rms_norm=eps_outside),
    ops_fault("norm.eps-1e-6", "NORM-3", "NVIDIA/cutlass#1112", rms_norm=fixed_eps(1e-6)),
    ops_fault("norm.eps-1e-5", "NORM-3", "Lightning-AI/lit-llama#339", rms_norm=fixed_eps(1e-5)),
    ops_fault("norm.no-eps", "NORM-3", "meta-pytorch/torchtune#152", rms_norm=fixed_eps(0.0)),
    ops_fault("norm.n-minus-1", "NORM-7", rms_norm=unbiased),
    ops_fault("norm.centred", "NORM-2", rms_norm=centred),
    ops_fault("norm.over-rows", "NORM-1", rms_norm=over_rows),
    ops_fault("norm.first-row", "NORM-1", rms_norm=first_row_only),
    ops_fault("norm.no-upcast", "NORM-4", "meta-llama/llama#1048", rms_norm=no_upcast),
    ops_fault("norm.narrow-sum", "NORM-4", rms_norm=narrow_sum),
    ops_fault("norm.last-missing", "NORM-7", rms_norm=last_missing),
    ops_fault(
        "norm.weight-ignored", "NORM-1", rms_norm=lambda x, w, eps: rms_norm(x, torch.ones_like(w), eps)
    ),
    ops_fault("norm.1-percent", "NORM-1", rms_norm=lambda x, w, eps: rms_norm(x, w, eps) * 1.01),
    ops_fault("norm.zeros", "NORM-1", rms_norm=lambda x, _w, _eps: torch.zeros_like(x)),
    ops_fault("norm.identity", "NORM-1", rms_norm=lambda x, _w, _eps: x),
    ops_fault("norm.nan", "NORM-1", rms_norm=lambda x, _w, _eps: x * torch.nan),
    ops_fault(
        "norm.one-plus-weight",
        "NORM-1",
        "vllm-project/vllm#31464",
        rms_norm=lambda x, w, eps: rms_norm(x, 1 + w, eps),
    ),
    ops_fault("norm.widened", "NORM-5", rms_norm=widened),
    ops_fault("norm.weight-8-bit", "NORM-6", rms_norm=narrow_weight),
    ops_fault("norm.eps-not-in-the-layers", "NORM-9", "meta-pytorch/torchtune#152", block=eps_of_a_default),
    model_fault("norm.eps-not-at-the-end", "NORM-9", "meta-pytorch/torchtune#152", DefaultEpsAtTheEnd),
    ops_fault("norm.over-batch", "LOGITS-3", rms_norm=over_batch),
    ops_fault("norm.twice", "NORM-3", "ggml-org/llama.cpp#1925", rms_norm=twice),
    fresh_fault("norm.stale-buffer", "NORM-1", "classical", stale_buffer),
]
