"""Wrong gates."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from conformance.faults.catalogue import Fault, ops_fault
from reference_impl import Ops
from reference_impl.mlp import gated


def swapped(gate: Tensor, up: Tensor, kind: str, ops: Ops) -> Tensor:
    """Gate and up exchanged."""
    return gated(up, gate, kind, ops)


def silu_of_product(gate: Tensor, up: Tensor, kind: str, ops: Ops) -> Tensor:
    """The activation applied to the product."""
    return ops.act(gate * up, kind)


def both(gate: Tensor, up: Tensor, kind: str, ops: Ops) -> Tensor:
    """The activation applied to both."""
    return ops.act(gate, kind) * ops.act(up, kind)


def added(gate: Tensor, up: Tensor, kind: str, ops: Ops) -> Tensor:
    """Added instead of multiplied."""
    return ops.act(gate, kind) + up


FAULTS: list[Fault] = [
    ops_fault("mlp.gate-up-swapped", "MLP-2", "NVIDIA/TensorRT-LLM#1842", gated=swapped),
    ops_fault("mlp.silu-of-product", "MLP-2", "ml-explore/mlx-lm#767", gated=silu_of_product),
    ops_fault("mlp.silu-of-both", "MLP-2", gated=both),
    ops_fault("mlp.added", "MLP-2", gated=added),
    ops_fault("mlp.no-activation", "MLP-1", act=lambda z, _kind: z),
    ops_fault("mlp.sigmoid", "MLP-1", act=lambda z, _kind: torch.sigmoid(z)),
    ops_fault("mlp.relu", "MLP-1", "huggingface/candle#991", act=lambda z, _kind: functional.relu(z)),
    ops_fault("mlp.gelu", "MLP-1", act=lambda z, _kind: functional.gelu(z)),
    ops_fault("mlp.quick-gelu", "MLP-1", act=lambda z, _kind: z * torch.sigmoid(1.702 * z)),
    ops_fault("mlp.clamped", "MLP-1", act=lambda z, _kind: functional.silu(z).clamp(max=20)),
]
