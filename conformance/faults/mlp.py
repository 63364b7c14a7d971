"""Wrong gates."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from conformance.faults.catalogue import Fault, load_fault, op_fault, ops_fault
from reference_impl import LlamaConfig, Ops
from reference_impl.block import Step, Weights, mlp
from reference_impl.config import gated_width
from reference_impl.mlp import act, gated


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


def always(kind: str) -> object:
    """One activation whatever the config says."""
    return lambda z, _kind: act(z, kind)


def erf_for_tanh(z: Tensor, kind: str) -> Tensor:
    """Both kinds of GELU taken for the one by the error function."""
    return act(z, "gelu" if kind.startswith("gelu") else kind)


def without(*names: str) -> object:
    """The network without some of its biases."""

    def wrong(x: Tensor, weights: Weights, step: Step) -> Tensor:
        kept = {n: w for n, w in weights.items() if n not in {f"mlp.{name}.bias" for name in names}}
        return mlp(x, kept, step)

    return wrong


def width_by_the_rule(
    config: LlamaConfig, weights: dict[str, Tensor]
) -> tuple[LlamaConfig, dict[str, Tensor]]:
    """A network no wider than a rule of its own allows: the rest of the weights is cut off."""
    width = min(config.intermediate_size, gated_width(config.hidden_size, 16, 0.5))
    cut = dict(weights)
    for name, weight in weights.items():
        if ".mlp." in name and not name.endswith(".bias"):
            cut[name] = weight[:, :width] if "down_proj" in name else weight[:width]
    return replace(config, intermediate_size=width), cut


FAULTS: list[Fault] = [
    ops_fault("mlp.gate-up-swapped", "MLP-2", "NVIDIA/TensorRT-LLM#1842", gated=swapped),
    ops_fault("mlp.silu-of-product", "MLP-2", gated=silu_of_product),
    ops_fault("mlp.silu-of-both", "MLP-2", gated=both),
    ops_fault("mlp.added", "MLP-2", gated=added),
    ops_fault("mlp.no-activation", "MLP-1", act=lambda z, _kind: z),
    ops_fault("mlp.sigmoid", "MLP-1", act=lambda z, _kind: torch.sigmoid(z)),
    ops_fault("mlp.relu", "MLP-1", "huggingface/candle#991", act=lambda z, _kind: functional.relu(z)),
    ops_fault("mlp.gelu", "MLP-1", act=lambda z, _kind: functional.gelu(z)),
    ops_fault("mlp.quick-gelu", "MLP-1", act=lambda z, _kind: z * torch.sigmoid(1.702 * z)),
    ops_fault("mlp.clamped", "MLP-1", act=lambda z, _kind: functional.silu(z).clamp(max=20)),
    ops_fault("mlp.always-silu", "MLP-3", act=always("silu")),
    ops_fault("mlp.erf-for-tanh", "MLP-3", "NVIDIA-NeMo/Megatron-Bridge#4661", act=erf_for_tanh),
    ops_fault(
        "mlp.biases-ignored",
        "MLP-5",
        "NVIDIA/TensorRT-LLM#3476",
        mlp=without("gate_proj", "up_proj", "down_proj"),
    ),
    ops_fault("mlp.down-bias-ignored", "MLP-5", mlp=without("down_proj")),
    load_fault("mlp.width-by-the-rule", "MLP-6", "EleutherAI/gpt-neox#1309", width_by_the_rule),
    op_fault(
        "mlp.width-not-rounded-up",
        "MLP-6",
        "classical",
        ffn_width=lambda size, of, by: round(by * 8 * size / 3 / of) * of,
    ),
]
