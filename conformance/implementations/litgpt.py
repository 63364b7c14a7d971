"""LitGPT's Llama.

Everything is computed by the library's own functions and modules, and weights go through its own converters.
Checked with litgpt 0.5.13.
"""

# ruff: noqa: PLC0415 - importing litgpt takes seconds: only who uses it pays

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from conformance.implementations import modules
from conformance.implementations.base import Implementation, Model, Unsupported
from conformance.implementations.litgpt_model import LitGPTModel
from conformance.weight_maps import own_name
from reference_impl import LlamaConfig, Rope


def rope_adjustments(rope: Rope) -> dict[str, Any] | None:
    """The rule as LitGPT spells it: which keys there are decides which rule it is."""
    if rope.rope_type == "default":
        return None
    if rope.rope_type == "linear":
        return {"factor": rope.factor}
    return {
        "factor": rope.factor,
        "low_freq_factor": rope.low_freq_factor,
        "high_freq_factor": rope.high_freq_factor,
        "original_max_seq_len": rope.original_max_position_embeddings,
    }


def lit_config(config: LlamaConfig, *, adjacent: bool = False) -> Any:
    """The canonical config as a litgpt.Config.

    Args:
        config: canonical.
        adjacent: rotate adjacent pairs.

    Raises:
        Unsupported: the config has biases.
    """
    from litgpt.config import Config

    if config.attention_bias != config.mlp_bias:
        which = "attention_bias" if config.attention_bias else "mlp_bias"
        raise Unsupported(
            f"LitGPT cannot express {which} alone: its bias flag covers attention and MLP together, and its "
            "attn_bias flag leaves out the output projection"
        )
    if config.attention_bias:
        raise Unsupported("LitGPT's converter for Llama checkpoints (copy_weights_hf_llama) knows no biases")
    gelu = config.hidden_act != "silu"
    return Config(
        name="llama",  # "Gemma" in the name would switch to the (1 + w) norm
        block_size=config.max_position_embeddings,
        n_layer=config.num_hidden_layers,
        n_embd=config.hidden_size,
        vocab_size=config.vocab_size,
        padded_vocab_size=config.vocab_size,
        norm_class_name="RMSNorm",
        norm_eps=config.rms_norm_eps,
        parallel_residual=False,
        n_head=config.num_attention_heads,
        head_size=config.head_dim,
        n_query_groups=config.num_key_value_heads,
        rope_base=config.rope.rope_theta,
        rope_adjustments=rope_adjustments(config.rope),
        rotary_percentage=config.rope.partial_rotary_factor,
        rope_interleave=adjacent,
        sliding_window_size=config.sliding_window,
        intermediate_size=config.intermediate_size,
        bias=False,
        # LitGPT's gated MLPs are one class per activation; GemmaMLP is LLaMAMLP with gelu.
        mlp_class_name="GemmaMLP" if gelu else "LLaMAMLP",
        gelu_approximate="tanh" if config.hidden_act == "gelu_pytorch_tanh" else "none",
    )


class LitGPT(Implementation):
    """Lightning's litgpt."""

    name = "litgpt"
    packages = ("litgpt",)
    module = "litgpt"

    def build(self, config: LlamaConfig, weights: Mapping[str, Tensor]) -> Model:
        """GPT, its weights through copy_weights_hf_llama, loaded strictly.

        Its config has no word for tying: where lm_head.weight is absent, the converter copies the embedding,
        whatever tie_word_embeddings says.
        """
        return self._build(lit_config(config), config, weights)

    def build_adjacent(self, config: LlamaConfig, weights: Mapping[str, Tensor]) -> Model:
        """The same with rope_interleave, LitGPT's word for adjacent pairs."""
        return self._build(lit_config(config, adjacent=True), config, weights)

    def _build(self, own: Any, config: LlamaConfig, weights: Mapping[str, Tensor]) -> Model:
        from litgpt.scripts.convert_hf_checkpoint import copy_weights_hf_llama

        modules.refuse_tied_head(config, weights)
        modules.dtype_and_device(weights)
        state: dict[str, Tensor] = {}
        copy_weights_hf_llama(own, {}, state, dict(weights))
        return self._load(own, config, state)

    def _load(self, own: Any, config: LlamaConfig, state: Mapping[str, Tensor]) -> Model:
        """GPT with a state_dict of its own names."""
        from litgpt.model import GPT

        dtype, device = modules.dtype_and_device(state)
        with modules.NoInit(), modules.default_dtype(dtype):
            gpt = GPT(own)
        # The cast is for the cos and sin buffers, which are built in float32: LitGPT's own users have them
        # rounded to the model's dtype, for Fabric casts the whole module under precision="bf16-true". The
        # angles behind them stay float32.
        gpt.to(device=device, dtype=dtype).load_state_dict(state, strict=True)
        return LitGPTModel(gpt.eval().requires_grad_(False), tied=config.tie_word_embeddings)

    def formats(self) -> tuple[str, ...]:
        """Its own."""
        return ("litgpt",)

    def build_from(self, format_name: str, config: LlamaConfig, tensors: Mapping[str, Tensor]) -> Model:
        """GPT, loaded strictly and without its converter; its head is its own, also where the config ties it.

        Raises:
            Unsupported: another format.
        """
        if format_name not in self.formats():
            raise Unsupported(f"LitGPT loads litgpt tensors alone, not {format_name}")
        return self._load(lit_config(config), config, tensors)

    def own_name(self, canonical: str) -> str:
        """LitGPT's name of the tensor; q, k and v have the same."""
        return own_name("litgpt", canonical)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """litgpt.model.RMSNorm."""
        from litgpt.model import RMSNorm

        y: Tensor = torch.func.functional_call(RMSNorm(x.shape[-1], eps=eps), {"weight": weight}, (x,))
        return y

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        """The middle of LLaMAMLP, with its projections taken out."""
        from litgpt.config import Config
        from litgpt.model import LLaMAMLP

        with modules.NoInit():
            mlp = LLaMAMLP(Config(n_head=1, n_embd=1, intermediate_size=1))
        mlp.fc_1, mlp.fc_2, mlp.proj = modules.Pick(0), modules.Pick(1), nn.Identity()
        y: Tensor = mlp((gate, up))
        return y

    def rope_tables(self, config: LlamaConfig, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Rows of the cos and sin buffers of a GPT without layers that is long enough, [T, d]."""
        from litgpt.model import GPT

        own = lit_config(
            replace(
                config,
                vocab_size=1,
                hidden_size=1,
                intermediate_size=1,
                attention_bias=False,
                mlp_bias=False,
                max_position_embeddings=int(positions.max()) + 1,
            )
        )
        own.n_layer = 0
        with modules.NoInit():
            gpt = GPT(own).to(positions.device)
        return gpt.cos[positions], gpt.sin[positions]

    def apply_rope(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """litgpt.model.apply_rope."""
        from litgpt.model import apply_rope

        return apply_rope(q, cos[None], sin[None]), apply_rope(k, cos[None], sin[None])

    def apply_rope_adjacent(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """litgpt.model.apply_rope_interleave; q and k come back in half-split order, both alike."""
        from litgpt.model import apply_rope_interleave

        full = [torch.cat([t, t], dim=-1)[None, None] for t in (cos, sin)]
        cos, sin = (t.flatten(0, 1) for t in full)
        return apply_rope_interleave(q, cos, sin), apply_rope_interleave(k, cos, sin)

    def attention_core(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
        """CausalSelfAttention with its projections taken out and no part of the head rotated.

        It hands the mask on, boolean or additive.
        Earlier keys and values reach it through its own cache: the queries are those of the last tokens.

        Raises:
            Unsupported: more queries than keys.
        """
        from litgpt.config import Config
        from litgpt.model import CausalSelfAttention

        (batch, heads, tokens, width), (_, groups, keys, _) = q.shape, k.shape
        past = keys - tokens
        if past < 0:
            raise Unsupported(
                f"LitGPT's attention takes queries of its keys' last tokens, got {tokens} on {keys}"
            )
        usual = scale == 1 / math.sqrt(width)
        own = Config(
            n_embd=1,
            n_head=heads,
            n_query_groups=groups,
            head_size=width,
            attention_scores_scalar=None if usual else 1 / scale**2,
            rotary_percentage=0.0,
        )
        with torch.device("meta"):  # the projections are thrown away
            attention = CausalSelfAttention(own, 0)
        attention.qkv, attention.proj = nn.Identity(), nn.Identity()
        new = (q, k[:, :, past:], v[:, :, past:])
        x_BTC = torch.cat([t.transpose(1, 2).flatten(2) for t in new], dim=-1)
        unrotated = q.new_empty(1, tokens, 0)
        given: dict[str, Any] = {}
        if past:
            attention.kv_cache = attention.build_kv_cache(batch, keys, 0, q.device, q.dtype)
            attention.kv_cache(torch.arange(past, device=q.device), k[:, :, :past], v[:, :, :past])
            given = {"input_pos": torch.arange(past, keys, device=q.device), "input_pos_maxp1": keys}
        y_BTC = attention(x_BTC, unrotated, unrotated, mask if mask.ndim == 4 else mask[None, None], **given)
        return modules.split_heads(y_BTC, width)

    def additive_attention_core(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
        """The same."""
        return self.attention_core(q, k, v, mask, scale)
