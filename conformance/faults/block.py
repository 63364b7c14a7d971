"""Layers put together wrongly, and single steps within them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from conformance.faults.catalogue import Fault, Weights, load_fault, model_fault, ops_fault
from conformance.implementations.reference import ReferenceModel
from reference_impl import Llama, LlamaConfig, Ops
from reference_impl.block import Step, attention_module
from reference_impl.block import Weights as Layer
from reference_impl.mlp import gated
from reference_impl.ops import apply_rope_adjacent

Part = Callable[[Tensor, Layer, Step], Tensor]


NORMS = ("input_layernorm", "post_attention_layernorm")


def normed(x: Tensor, weights: Layer, step: Step, arrow: str, name: str) -> Tensor:
    """A norm by the weight of that name, shown under that tap."""
    return step.show(arrow, step.ops.rms_norm(x, weights[f"{name}.weight"], step.config.rms_norm_eps))


def norms(weights: Layer, step: Step) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """The two norms of a layer, each shown under its tap."""
    first = functools.partial(normed, weights=weights, step=step, arrow="attn_norm", name=NORMS[0])
    second = functools.partial(normed, weights=weights, step=step, arrow="mlp_norm", name=NORMS[1])
    return first, second


def no_residual(_residual: Tensor, branch: Tensor) -> Tensor:
    """The residual left out."""
    return branch


def post_norm(x: Tensor, weights: Layer, step: Step) -> Tensor:
    """The norms behind the branches, as in the first Transformer."""
    first, second = norms(weights, step)
    x = first(x + step.ops.attention_module(x, weights, step))
    return step.show("mlp_residual", second(x + step.ops.mlp(x, weights, step)))


def parallel(x: Tensor, weights: Layer, step: Step) -> Tensor:
    """Attention and MLP side by side behind one norm."""
    y = norms(weights, step)[0](x)
    x = step.show("attn_residual", x + step.ops.attention_module(y, weights, step))
    return step.show("mlp_residual", x + step.ops.mlp(step.show("mlp_norm", y), weights, step))


def norm_shared(x: Tensor, weights: Layer, step: Step) -> Tensor:
    """The second branch behind the first norm."""
    first, _ = norms(weights, step)
    x = step.show("attn_residual", x + step.ops.attention_module(first(x), weights, step))
    y = normed(x, weights, step, "mlp_norm", NORMS[0])
    return step.show("mlp_residual", x + step.ops.mlp(y, weights, step))


def from_normed(x: Tensor, weights: Layer, step: Step) -> Tensor:
    """The branches added to the normed stream."""
    first, second = norms(weights, step)
    x = first(x)
    x = second(step.show("attn_residual", x + step.ops.attention_module(x, weights, step)))
    return step.show("mlp_residual", x + step.ops.mlp(x, weights, step))


def attention_twice(x: Tensor, weights: Layer, step: Step) -> Tensor:
    """What attention gives added at both residuals."""
    first, second = norms(weights, step)
    branch = step.ops.attention_module(first(x), weights, step)
    x = step.show("attn_residual", x + branch)
    return step.show("mlp_residual", x + branch + step.ops.mlp(second(x), weights, step))


def past_attention(x: Tensor, weights: Layer, step: Step) -> Tensor:
    """The second residual from the layer's input, around attention."""
    first, second = norms(weights, step)
    y = step.show("attn_residual", x + step.ops.attention_module(first(x), weights, step))
    return step.show("mlp_residual", x + step.ops.mlp(second(y), weights, step))


def attending_with(change: Callable[[Layer, Step], Layer]) -> Part:
    """Attention with other weights than the layer's."""
    return lambda x, weights, step: attention_module(x, {**weights, **change(weights, step)}, step)


def q_biased(weights: Layer, _step: Step) -> Layer:
    """A bias on q where none is configured."""
    rows = weights["self_attn.q_proj.weight"][:, 0]
    return {"self_attn.q_proj.bias": torch.full_like(rows, 0.1)}


def v_scaled(weights: Layer, _step: Step) -> Layer:
    """v 1% too large."""
    return {"self_attn.v_proj.weight": weights["self_attn.v_proj.weight"] * 1.01}


def o_transposed(weights: Layer, _step: Step) -> Layer:
    """The output projection transposed, which only a square one survives."""
    weight = weights["self_attn.o_proj.weight"]
    return {"self_attn.o_proj.weight": weight.T if weight.shape[0] == weight.shape[1] else weight}


def last_layer_unrotated(x: Tensor, weights: Layer, step: Step) -> Tensor:
    """The last layer without positions, as every fourth one of SmolLM3."""
    if step.layer == step.config.num_hidden_layers - 1:
        step = replace(step, cos=torch.ones_like(step.cos), sin=torch.zeros_like(step.sin))
    return attention_module(x, weights, step)


def heads_not_brought_back(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, ops: Ops
) -> Tensor:
    """[B, H, T, d] read as [B, T, H, d]: a view in place of a transposition."""
    y = Ops().attention(q, k, v, mask, scale, ops)
    batch, heads, tokens, width = y.shape
    return y.reshape(batch, tokens, heads, width).transpose(1, 2)


def gated_in_8_bit(gate: Tensor, up: Tensor, kind: str, ops: Ops) -> Tensor:
    """The gate of a 16-bit model rounded to 8 bit."""
    narrow = torch.float8_e4m3fn if gate.dtype.itemsize == 2 else gate.dtype
    return gated(gate.to(narrow).to(gate.dtype), up, kind, ops)


def embedding_scaled(config: LlamaConfig, weights: Weights) -> tuple[LlamaConfig, Weights]:
    """The embedding times the root of the hidden size, as Gemma has it."""
    name = "model.embed_tokens.weight"
    head = weights.get("lm_head.weight", weights[name])
    scaled = weights[name] * config.hidden_size**0.5
    return replace(config, tie_word_embeddings=False), {**weights, name: scaled, "lm_head.weight": head}


def last_layer_skipped(config: LlamaConfig, weights: Weights) -> tuple[LlamaConfig, Weights]:
    """One layer too few."""
    last = f"model.layers.{config.num_hidden_layers - 1}."
    fewer = replace(config, num_hidden_layers=config.num_hidden_layers - 1)
    return fewer, {n: w for n, w in weights.items() if not n.startswith(last)}


class TapsOfAnother(ReferenceModel):
    """Taps of a right model, shown by one that rotates adjacent pairs."""

    def logits(
        self, tokens_BT: Tensor, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """See Model.logits."""
        llama = self.llama
        ops = replace(llama.ops, apply_rope=apply_rope_adjacent)
        other = ReferenceModel(Llama(llama.config, llama.weights, ops=ops, dtype=llama.dtype))
        return other.logits(tokens_BT, positions, mask)


FAULTS: list[Fault] = [
    ops_fault("block.no-residual", "BLOCK-1", add=no_residual),
    ops_fault("block.post-norm", "BLOCK-1", block=post_norm),
    ops_fault("block.parallel", "BLOCK-1", block=parallel),
    ops_fault("block.norm-shared", "BLOCK-1", block=norm_shared),
    ops_fault("block.residual-from-normed", "BLOCK-1", block=from_normed),
    ops_fault("block.attention-twice", "BLOCK-1", block=attention_twice),
    ops_fault("block.past-attention", "BLOCK-1", block=past_attention),
    ops_fault("block.q-biased", "BLOCK-2", attention_module=attending_with(q_biased)),
    ops_fault("block.v-1-percent", "BLOCK-2", attention_module=attending_with(v_scaled)),
    ops_fault("block.o-transposed", "BLOCK-2", attention_module=attending_with(o_transposed)),
    ops_fault("block.last-layer-unrotated", "BLOCK-2", attention_module=last_layer_unrotated),
    ops_fault("block.heads-not-brought-back", "BLOCK-2", attention=heads_not_brought_back),
    ops_fault("block.gated-in-8-bit", "BLOCK-2", gated=gated_in_8_bit),
    load_fault("block.embedding-scaled", "BLOCK-2", "classical", embedding_scaled),
    load_fault("block.last-layer-skipped", "LOGITS-1", "classical", last_layer_skipped),
    model_fault("block.taps-of-another", "BLOCK-2", "classical", TapsOfAnother),
]
