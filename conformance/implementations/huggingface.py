"""Hugging Face transformers' Llama, under its eager and its sdpa attention.

Everything is computed by the library's own functions and modules. Checked with transformers 5.3 and 5.24.
"""

# ruff: noqa: PLC0415 - importing transformers takes seconds: only who uses it pays

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from conformance.implementations import compiled, modules
from conformance.implementations.base import Attend, Implementation, Model, Unsupported
from conformance.implementations.huggingface_attention import attention_function, for_attention
from conformance.implementations.huggingface_model import HuggingFaceModel
from reference_impl import LlamaConfig, Rope


def rope_parameters(rope: Rope) -> dict[str, Any]:
    """The rule as transformers spells it; a new dict each time, for transformers writes into it.

    Its validation wants floats where config.json often holds whole numbers.
    """
    rule = {
        "factor": rope.factor,
        "low_freq_factor": rope.low_freq_factor,
        "high_freq_factor": rope.high_freq_factor,
    }
    given: dict[str, Any] = {name: float(value) for name, value in rule.items() if value is not None}
    if rope.original_max_position_embeddings is not None:
        given["original_max_position_embeddings"] = rope.original_max_position_embeddings
    return {"rope_type": rope.rope_type, "rope_theta": float(rope.rope_theta), **given}


def llama_config(config: LlamaConfig) -> Any:
    """The canonical config as a transformers.LlamaConfig.

    Raises:
        Unsupported: transformers refuses it (5.24 wants hidden_size % num_attention_heads == 0, also with an
            explicit head_dim; 5.3 does not).
    """
    from transformers import LlamaConfig as Upstream

    return _made(Upstream, config, attention_bias=config.attention_bias, mlp_bias=config.mlp_bias)


def mistral_config(config: LlamaConfig) -> Any:
    """The canonical config as a transformers.MistralConfig: the same model with a sliding window.

    Raises:
        Unsupported: it has biases, or transformers refuses it.
    """
    from transformers import MistralConfig

    if config.attention_bias or config.mlp_bias:
        raise Unsupported("transformers' Mistral, which has the sliding window, has no biases")
    return _made(MistralConfig, config, sliding_window=config.sliding_window)


def _made(upstream: Callable[..., Any], config: LlamaConfig, **own: Any) -> Any:
    from huggingface_hub.errors import StrictDataclassError

    if config.rope.partial_rotary_factor != 1:
        raise Unsupported("transformers' Llama rotates whole heads: it ignores partial_rotary_factor")
    try:
        return upstream(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_hidden_layers,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            hidden_act=config.hidden_act,
            max_position_embeddings=config.max_position_embeddings,
            rms_norm_eps=config.rms_norm_eps,
            tie_word_embeddings=config.tie_word_embeddings,
            rope_parameters=rope_parameters(config.rope),
            bos_token_id=None,  # the defaults need not lie within a small vocabulary
            eos_token_id=None,
            **own,
        )
    except (ValueError, StrictDataclassError) as error:
        raise Unsupported(f"transformers refuses the config: {error}") from error


class _HuggingFace(Implementation):
    """What both attention implementations share."""

    packages = ("transformers",)
    module = "transformers"
    attention: ClassVar[str]

    def build(self, config: LlamaConfig, weights: Mapping[str, Tensor]) -> Model:
        """LlamaForCausalLM, or MistralForCausalLM where there is a sliding window, loaded strictly."""
        from transformers import LlamaForCausalLM, MistralForCausalLM
        from transformers.initialization import no_init_weights

        modules.refuse_tied_head(config, weights)
        dtype, device = modules.dtype_and_device(weights)
        kind, upstream = LlamaForCausalLM, llama_config(config)
        if config.sliding_window is not None:
            kind, upstream = MistralForCausalLM, mistral_config(config)
        # _from_config(dtype=) allocates the parameters in dtype and leaves inv_freq in float32, as
        # from_pretrained does; .to(dtype) of a built model would round inv_freq.
        with no_init_weights():
            model = kind._from_config(upstream, dtype=dtype, attn_implementation=self.attention)  # noqa: SLF001
        state = dict(weights)
        if config.tie_word_embeddings:
            model.tie_weights()
            if modules.EMBEDDING in weights:
                state[modules.HEAD] = weights[modules.EMBEDDING]
        model.to(device).load_state_dict(state, strict=True)
        return HuggingFaceModel(model.eval().requires_grad_(False), self.attention)

    def formats(self) -> tuple[str, ...]:
        """Its own, which is the canonical one."""
        return ("huggingface",)

    def build_from(self, format_name: str, config: LlamaConfig, tensors: Mapping[str, Tensor]) -> Model:
        """See build.

        Raises:
            Unsupported: another format.
        """
        if format_name not in self.formats():
            raise Unsupported(f"transformers loads huggingface tensors alone, not {format_name}")
        return self.build(config, tensors)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """LlamaRMSNorm."""
        from transformers.models.llama.modeling_llama import LlamaRMSNorm

        y: Tensor = torch.func.functional_call(LlamaRMSNorm(x.shape[-1], eps), {"weight": weight}, (x,))
        return y

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        """The middle of LlamaMLP, with its projections taken out."""
        from transformers.models.llama.modeling_llama import LlamaMLP

        with modules.NoInit():
            mlp = LlamaMLP(llama_config(_smallest()))
        mlp.gate_proj, mlp.up_proj, mlp.down_proj = modules.Pick(0), modules.Pick(1), nn.Identity()
        y: Tensor = mlp((gate, up))
        return y

    def rope_tables(self, config: LlamaConfig, positions: Tensor) -> tuple[Tensor, Tensor]:
        """LlamaRotaryEmbedding, [T, d]."""
        # The tables depend on d and the rule alone; one head keeps the library from judging D % H.
        one_head = replace(config, hidden_size=config.head_dim, num_attention_heads=1, num_key_value_heads=1)
        return _rotary(llama_config(one_head), positions)

    def apply_rope(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """apply_rotary_pos_emb."""
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

        q_rot, k_rot = apply_rotary_pos_emb(q, k, cos[None], sin[None])
        return q_rot, k_rot

    def attention_core(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
        """The attention function, which expands the kv heads itself."""
        return self.additive_attention_core(q, k, v, for_attention(self.attention, mask, q.dtype), scale)

    def additive_attention_core(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
        """The same, which hands the mask on as it is."""
        module = SimpleNamespace(
            num_key_value_groups=q.shape[1] // k.shape[1], is_causal=True, training=False
        )
        given = mask if mask.ndim == 4 else mask[None, None]
        y_BTHd, _ = attention_function(self.attention)(module, q, k, v, given, scaling=scale)
        return y_BTHd.transpose(1, 2)

    def compiled_attention_core(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
        """The library's flex_attention."""
        groups = q.shape[1] // k.shape[1]
        module = SimpleNamespace(num_key_value_groups=groups, is_causal=True, training=False)

        def attend(block_mask: Any) -> Tensor:
            return attention_function("flex_attention")(module, q, k, v, block_mask, scaling=scale)[0]

        return compiled.by_a_kernel(attend, mask).transpose(1, 2)

    def attention_cores(self) -> dict[str, Attend]:
        """Both attention functions of the library that run anywhere."""
        return {kind.attention: kind().attention_core for kind in (HuggingFaceEager, HuggingFaceSdpa)}

    def apply_rope_adjacent(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Cohere's apply_rotary_pos_emb: transformers' Llama has no adjacent pairs, its Cohere has."""
        from transformers.models.cohere.modeling_cohere import apply_rotary_pos_emb

        tables = (t.repeat_interleave(2, dim=-1)[None] for t in (cos, sin))
        q_rot, k_rot = apply_rotary_pos_emb(q, k, *tables)
        return q_rot, k_rot

    def json_rope_tables(self, config_json: dict[str, Any], positions: Tensor) -> tuple[Tensor, Tensor]:
        """LlamaRotaryEmbedding of LlamaConfig(**config_json)."""
        from transformers import LlamaConfig as Upstream

        return _rotary(Upstream(**config_json), positions)


def _rotary(upstream: Any, positions: Tensor) -> tuple[Tensor, Tensor]:
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    rotary = LlamaRotaryEmbedding(config=upstream).to(positions.device)
    like = torch.empty(0, dtype=torch.float32, device=positions.device)
    cos, sin = rotary(like, position_ids=positions[None])
    return cos[0], sin[0]


def _smallest() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=1,
        hidden_size=2,
        intermediate_size=1,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
    )


class HuggingFaceEager(_HuggingFace):
    """transformers with its plain attention."""

    name = "huggingface-eager"
    attention = "eager"


class HuggingFaceSdpa(_HuggingFace):
    """transformers with torch's scaled_dot_product_attention."""

    name = "huggingface-sdpa"
    attention = "sdpa"
