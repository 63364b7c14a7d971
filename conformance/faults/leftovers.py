"""Kernels that leave something behind: in what they were given, or for the next call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from conformance.faults.catalogue import Fault, fresh_fault, ops_fault
from reference_impl import Ops
from reference_impl.attention import attention
from reference_impl.attention import softmax as right_softmax
from reference_impl.block import Step, Weights, block, mlp
from reference_impl.mlp import gated
from reference_impl.norm import rms_norm
from reference_impl.ops import Pair
from reference_impl.rope import rotate


def kept_by_shape() -> dict[str, Any]:
    """A result that is handed out again for the same shape."""
    kept: dict[tuple[object, ...], Tensor] = {}

    def wrong(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, ops: Ops) -> Tensor:
        return kept.setdefault((q.shape, k.shape, q.dtype), attention(q, k, v, mask, scale, ops))

    return {"attention": wrong}


def buffer_of_the_narrowest() -> dict[str, Any]:
    """Scores in a buffer that is made in the narrowest dtype so far, and kept."""
    narrowest = [torch.float64]

    def wrong(scores: Tensor) -> Tensor:
        if scores.dtype.itemsize <= narrowest[0].itemsize:
            narrowest[0] = scores.dtype
        return right_softmax(scores.to(narrowest[0]).to(scores.dtype))

    return {"softmax": wrong}


def weight_of_the_first() -> dict[str, Any]:
    """The weight of the first call of a width, kept for all that follow."""
    kept: dict[tuple[object, ...], Tensor] = {}

    def wrong(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return rms_norm(x, kept.setdefault((weight.shape, weight.dtype), weight.clone()), eps)

    return {"rms_norm": wrong}


def narrowest_gate() -> dict[str, Any]:
    """Gates that go through a buffer of the narrowest dtype so far."""
    narrowest = [torch.float64]

    def wrong(gate: Tensor, up: Tensor, kind: str, ops: Ops) -> Tensor:
        if gate.dtype.itemsize <= narrowest[0].itemsize:
            narrowest[0] = gate.dtype
        return gated(gate.to(narrowest[0]).to(gate.dtype), up, kind, ops)

    return {"gated": wrong}


def tables_of_the_first() -> dict[str, Any]:
    """cos and sin laid out for the kernel once for a shape, and kept."""
    kept: dict[tuple[object, ...], Pair] = {}

    def wrong(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Pair:
        cos, sin = kept.setdefault((cos.shape, cos.dtype), (cos.clone(), sin.clone()))
        return rotate(q, cos, sin), rotate(k, cos, sin)

    return {"apply_rope": wrong}


def rotated_in_place(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Pair:
    """The result written over its input, where that is contiguous."""
    q_rot, k_rot = rotate(q, cos, sin), rotate(k, cos, sin)
    return q.copy_(q_rot) if q.is_contiguous() else q_rot, k.copy_(k_rot) if k.is_contiguous() else k_rot


def negated_in_place(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Pair:
    """k turned back by the table it shares with q, whose sign is changed where it stands."""
    turned = rotate(q, cos, sin), rotate(k, cos, sin)
    sin.neg_()
    return turned


def residual_in_place(x: Tensor, weights: Weights, step: Step) -> Tensor:
    """The residual stream added to where it stands."""
    return x.copy_(block(x, weights, step))


def network_in_place(x: Tensor, weights: Weights, step: Step) -> Tensor:
    """The network's result written over its input."""
    return x.copy_(mlp(x.clone(), weights, step))


FAULTS: list[Fault] = [
    fresh_fault("attention.kept-by-shape", "ATTN-11", "classical", kept_by_shape),
    fresh_fault("attention.narrowest-buffer", "ATTN-11", "classical", buffer_of_the_narrowest),
    ops_fault("rope.in-place", "ROPE-15", "unslothai/unsloth#5001", apply_rope=rotated_in_place),
    ops_fault("rope.table-negated", "ROPE-15", "classical", apply_rope=negated_in_place),
    fresh_fault("rope.kept-tables", "ROPE-11", "classical", tables_of_the_first),
    fresh_fault("norm.weight-of-the-first", "NORM-1", "classical", weight_of_the_first),
    fresh_fault("mlp.narrowest-buffer", "MLP-2", "classical", narrowest_gate),
    ops_fault("block.residual-in-place", "ATTN-12", "classical", block=residual_in_place),
    ops_fault("mlp.input-overwritten", "ATTN-12", "classical", mlp=network_in_place),
]
