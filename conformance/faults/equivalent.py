"""Wrong ways that nothing can show: their answers are the right ones to the bit, on a CPU or everywhere.

They are listed so that nobody looks for them, and so that it is proved again on every machine.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from conformance.faults.catalogue import Fault, ops_fault
from reference_impl import Ops
from reference_impl.attention import softmax as right_softmax


def not_upcast(scores: Tensor) -> Tensor:
    """Softmax of 16-bit scores without the cast to float32."""
    return torch.softmax(scores, dim=-1)


def nothing_seen(scores: Tensor) -> Tensor:
    """A row that sees nothing gives zeros, in place of NaN."""
    return right_softmax(scores).nan_to_num(0.0)


def smallest_number(
    q_BHTd: Tensor, k_BGSd: Tensor, v_BGSd: Tensor, mask: Tensor | None, scale: float, ops: Ops
) -> Tensor:
    """Scores masked by the smallest number of their dtype, in place of −∞."""
    group_size = q_BHTd.shape[1] // k_BGSd.shape[1]
    k_BHSd, v_BHSd = ops.expand_kv(k_BGSd, group_size), ops.expand_kv(v_BGSd, group_size)
    scores_BHTS = q_BHTd @ k_BHSd.transpose(-2, -1) * scale
    if mask is not None:
        scores_BHTS = scores_BHTS.masked_fill(~mask, torch.finfo(scores_BHTS.dtype).min)
    return ops.softmax(scores_BHTS) @ v_BHSd


def by_tf32(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Products with 10 bits of mantissa where the hardware offers them."""
    switch = torch.backends.cuda.matmul
    before, switch.allow_tf32 = switch.allow_tf32, True
    try:
        return functional.linear(x, weight, bias)
    finally:
        switch.allow_tf32 = before


def everywhere(fault: Fault, reason: str) -> Fault:
    """A fault that no machine shows."""
    return replace(fault, equivalent=reason)


def on_a_cpu(fault: Fault, reason: str) -> Fault:
    """A fault that a CPU does not show."""
    return replace(fault, equivalent=reason, equivalent_on="cpu")


FAULTS: list[Fault] = [
    on_a_cpu(
        ops_fault("attention.softmax-not-upcast", "ATTN-3", softmax=not_upcast),
        "torch.softmax adds up in float32 whatever it is given, and rounds once at the end: "
        "at most one weight in 50 000 differs, in its last bit",
    ),
    on_a_cpu(
        ops_fault("block.tf32-products", "LOGITS-1", linear=by_tf32),
        "TF32 is a mode of a GPU's matrix units: on a CPU the switch changes nothing",
    ),
    everywhere(
        ops_fault("attention.nan-hidden", "ATTN-3", softmax=nothing_seen),
        "under a causal mask every row sees its own key, so that no row of finite scores gives NaN",
    ),
    everywhere(
        ops_fault("mask.smallest-number", "MASK-1", attention=smallest_number),
        "the weight of a masked score is zero as soon as one that is seen is 104 larger, "
        "and a causal row always has one",
    ),
]
