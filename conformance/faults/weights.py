"""Wrong loading, and layers that are put together wrongly."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from conformance.faults.catalogue import Fault, Weights, load_fault, ops_fault
from conformance.weights import expected_shapes
from reference_impl import LlamaConfig
from reference_impl.block import Step
from reference_impl.rope import to_half_split

Loaded = tuple[LlamaConfig, Weights]


def renamed(config: LlamaConfig, weights: Weights, **exchange: str) -> Loaded:
    """Tensors of one name part put where another is expected."""
    out = dict(weights)
    for name in weights:
        for here, there in exchange.items():
            if here in name:
                out[name] = weights[name.replace(here, there)]
    return config, out


def broadcast(config: LlamaConfig, weights: Weights) -> Loaded:
    """copy_ into a tensor of the right shape, which broadcasts."""
    shapes = expected_shapes(config)
    return config, {
        n: torch.empty(shapes[n]).to(w).copy_(w) if n in shapes else w for n, w in weights.items()
    }


def lenient(config: LlamaConfig, weights: Weights) -> Loaded:
    """Missing tensors left at their initial values, unexpected ones ignored."""
    shapes = expected_shapes(config)
    if not weights:
        return config, weights
    dtype = next(iter(weights.values())).dtype
    return config, {n: weights[n] if n in weights else torch.ones(s, dtype=dtype) for n, s in shapes.items()}


def permuted(config: LlamaConfig, weights: Weights, kv_heads: int | None, *, v: bool = False) -> Loaded:
    """q and k permuted as if they came from Meta's layout; or k with a wrong head count."""
    counts = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    if kv_heads is not None:
        counts = {"k_proj": kv_heads}
    if v:
        counts = {"v_proj": config.num_key_value_heads}
    out = dict(weights)
    for name in weights:
        for part, heads in counts.items():
            if part in name:
                out[name] = to_half_split(weights[name], heads)
    return config, out


def first_layer_everywhere(config: LlamaConfig, weights: Weights) -> Loaded:
    """Layer 0's weights in every layer."""
    layers = {
        n: ".".join(["model.layers.0", *n.split(".")[3:]]) for n in weights if n.startswith("model.layers.")
    }
    return config, {n: weights[layers.get(n, n)] for n in weights}


def tied(config: LlamaConfig, weights: Weights) -> Loaded:
    """The embedding as unembedding although the config unties them."""
    return config, {
        n: weights["model.embed_tokens.weight"] if n == "lm_head.weight" else w for n, w in weights.items()
    }


def no_residual(_residual: Tensor, branch: Tensor) -> Tensor:
    """The residual left out."""
    return branch


def post_norm(x: Tensor, weights: Weights, step: Step) -> Tensor:
    """The norms behind the branches, as in the first Transformer."""
    ops, eps = step.ops, step.config.rms_norm_eps
    x = ops.rms_norm(x + ops.attention_module(x, weights, step), weights["input_layernorm.weight"], eps)
    return ops.rms_norm(x + ops.mlp(x, weights, step), weights["post_attention_layernorm.weight"], eps)


def one_norm(x: Tensor, weights: Weights, step: Step) -> Tensor:
    """Attention and MLP side by side behind one norm."""
    normed = step.ops.rms_norm(x, weights["input_layernorm.weight"], step.config.rms_norm_eps)
    return x + step.ops.attention_module(normed, weights, step) + step.ops.mlp(normed, weights, step)


def last_layer_skipped(config: LlamaConfig, weights: Weights) -> Loaded:
    """One layer too few."""
    last = f"model.layers.{config.num_hidden_layers - 1}."
    fewer = replace(config, num_hidden_layers=config.num_hidden_layers - 1)
    return fewer, {n: w for n, w in weights.items() if not n.startswith(last)}


FAULTS: list[Fault] = [
    load_fault("weights.broadcast", "WEIGHT-1", "classical", broadcast),
    load_fault("weights.lenient", "WEIGHT-2", "tinygrad/tinygrad#13796", lenient),
    load_fault(
        "weights.norms-exchanged",
        "LOGITS-1",
        "classical",
        lambda c, w: renamed(
            c, w, input_layernorm="post_attention_layernorm", post_attention_layernorm="input_layernorm"
        ),
    ),
    load_fault(
        "weights.norm-reused",
        "LOGITS-1",
        "classical",
        lambda c, w: renamed(c, w, post_attention_layernorm="input_layernorm"),
    ),
    load_fault(
        "weights.gate-up-exchanged",
        "MLP-2",
        "NVIDIA/TensorRT-LLM#1842",
        lambda c, w: renamed(c, w, gate_proj="up_proj", up_proj="gate_proj"),
    ),
    load_fault(
        "weights.k-v-exchanged",
        "ROPE-8",
        "classical",
        lambda c, w: renamed(c, w, k_proj="v_proj", v_proj="k_proj"),
    ),
    load_fault(
        "weights.qk-permuted", "LOGITS-1", "AI-Hypercomputer/maxtext#1774", lambda c, w: permuted(c, w, None)
    ),
    load_fault(
        "weights.k-permuted-with-h",
        "LOGITS-1",
        "huggingface/transformers#31788",
        lambda c, w: permuted(c, w, c.num_attention_heads),
    ),
    load_fault("weights.v-permuted", "LOGITS-1", "classical", lambda c, w: permuted(c, w, None, v=True)),
    load_fault("weights.layer-0-everywhere", "LOGITS-1", "classical", first_layer_everywhere),
    load_fault("weights.tied-although-untied", "LOGITS-1", "deepspeedai/DeepSpeed#4088", tied),
    load_fault("block.last-layer-skipped", "LOGITS-1", "classical", last_layer_skipped),
    ops_fault("block.no-residual", "LOGITS-1", add=no_residual),
    ops_fault("block.post-norm", "LOGITS-1", block=post_norm),
    ops_fault("block.parallel", "LOGITS-1", block=one_norm),
    ops_fault(
        "logits.2-percent",
        "LOGITS-1",
        linear=lambda x, w, b: torch.nn.functional.linear(x, w, b) * (1.02 if w.shape[0] == 131 else 1.0),
    ),
    ops_fault(
        "logits.wrong-in-fp16",
        "LOGITS-2",
        linear=lambda x, w, b: (
            torch.nn.functional.linear(x, w, b) * (1.05 if x.dtype == torch.float16 else 1.0)
        ),
    ),
    ops_fault(
        "logits.wrong-at-33",
        "LOGITS-2",
        linear=lambda x, w, b: torch.nn.functional.linear(x, w, b) * (1.5 if x.shape[-2] == 33 else 1.0),
    ),
]
