"""One decoder layer: pre-norm attention and pre-norm gated MLP, each with a residual.

Shape suffixes: B batch, T tokens, S keys, D hidden, H query heads, G kv heads, d head width, F intermediate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from reference_impl.cache import KVCache
    from reference_impl.config import LlamaConfig
    from reference_impl.ops import Ops

Weights = Mapping[str, Tensor]
Tap = Callable[[str, Tensor], None]


def no_tap(name: str, value: Tensor) -> None:
    """Look at nothing."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """What one forward pass shares with its layers.

    Args:
        config, ops: of the model.
        layer: index of the layer that runs.
        cos, sin: [..., T, P], broadcast against [B, heads, T, P].
        mask: [T, S] or [B, 1, T, S] bool, True = attend; None lets every query see every key.
        cache: keys and values of earlier tokens, or None.
        tap: is shown every named intermediate, as "layers.{i}.{arrow}".
    """

    config: LlamaConfig
    ops: Ops
    layer: int
    cos: Tensor
    sin: Tensor
    mask: Tensor | None = None
    cache: KVCache | None = None
    tap: Tap = no_tap

    def show(self, arrow: str, value: Tensor) -> Tensor:
        """Show an intermediate of this layer and pass it on."""
        self.tap(f"layers.{self.layer}.{arrow}", value)
        return value


def project(x: Tensor, weights: Weights, name: str, ops: Ops) -> Tensor:
    """x · Wᵀ (+ b where the layer has one)."""
    return ops.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))


def attention_module(x_BTD: Tensor, weights: Weights, step: Step) -> Tensor:
    """Project to heads, rotate q and k, remember k and v, attend, project back.

    Args:
        x_BTD: the normed input.
        weights: of the layer, by Hugging Face name ("self_attn.q_proj.weight").
        step: tables, mask and cache at hand.

    Returns:
        [B, T, D].
    """
    config, ops = step.config, step.ops
    batch, tokens, _ = x_BTD.shape

    def heads(name: str) -> Tensor:
        y = project(x_BTD, weights, f"self_attn.{name}_proj", ops)
        return step.show(
            name, y.view(batch, tokens, y.shape[-1] // config.head_dim, config.head_dim).transpose(1, 2)
        )

    q_BHTd, k_BGTd, v_BGTd = heads("q"), heads("k"), heads("v")
    q_BHTd, k_BGTd = ops.apply_rope(q_BHTd, k_BGTd, step.cos, step.sin)
    step.show("q_rot", q_BHTd)
    step.show("k_rot", k_BGTd)
    k_BGSd, v_BGSd = k_BGTd, v_BGTd
    if step.cache is not None:
        k_BGSd, v_BGSd = step.cache.extend(step.layer, k_BGTd, v_BGTd)
    y_BHTd = ops.attention(q_BHTd, k_BGSd, v_BGSd, step.mask, ops.scale(config.head_dim), ops)
    y_BTHd = step.show("attention", y_BHTd.transpose(1, 2).flatten(2))
    return step.show("attn_out", project(y_BTHd, weights, "self_attn.o_proj", ops))


def mlp(x_BTD: Tensor, weights: Weights, step: Step) -> Tensor:
    """W_down( act(W_gate x) ⊙ (W_up x) ).

    Args:
        x_BTD: the normed input.
        weights: of the layer.
        step: of the forward pass.

    Returns:
        [B, T, D].

    Source: Shazeer 2020, arXiv 2002.05202, eq. 6.
    """
    ops = step.ops
    gate_BTF = step.show("gate", project(x_BTD, weights, "mlp.gate_proj", ops))
    up_BTF = step.show("up", project(x_BTD, weights, "mlp.up_proj", ops))
    gated_BTF = step.show("gated", ops.gated(gate_BTF, up_BTF, step.config.hidden_act, ops))
    return step.show("mlp_out", project(gated_BTF, weights, "mlp.down_proj", ops))


def block(x_BTD: Tensor, weights: Weights, step: Step) -> Tensor:
    """x + attn(norm₁(x)), then x + mlp(norm₂(x)).

    Source: Touvron et al. 2023, arXiv 2302.13971, section 2.2.
    """
    ops, eps = step.ops, step.config.rms_norm_eps
    normed = step.show("attn_norm", ops.rms_norm(x_BTD, weights["input_layernorm.weight"], eps))
    x_BTD = step.show("attn_residual", ops.add(x_BTD, ops.attention_module(normed, weights, step)))
    normed = step.show("mlp_norm", ops.rms_norm(x_BTD, weights["post_attention_layernorm.weight"], eps))
    return step.show("mlp_residual", ops.add(x_BTD, ops.mlp(normed, weights, step)))
