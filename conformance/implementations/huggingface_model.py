"""A built Hugging Face Llama: forward, cache, parts and taps, all by the library's own modules.

Checked with transformers 5.3 and 5.24, whose cache arguments differ: signatures are read, versions are not.

Shape suffixes: B batch, T tokens, D hidden.
"""

# ruff: noqa: PLC0415 - importing transformers takes seconds: only who uses it pays

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from conformance.implementations import modules
from conformance.implementations.base import Held, Model, Show

# Module path within a layer → tap.
LAYER_INPUTS = {
    "self_attn.o_proj": "attention",
    "post_attention_layernorm": "attn_residual",
    "mlp.down_proj": "gated",
}
LAYER_OUTPUTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "q",
    "self_attn.k_proj": "k",
    "self_attn.v_proj": "v",
    "self_attn.o_proj": "attn_out",
    "post_attention_layernorm": "mlp_norm",
    "mlp.gate_proj": "gate",
    "mlp.up_proj": "up",
    "mlp.down_proj": "mlp_out",
    "": "mlp_residual",
}


def attention_function(implementation: str) -> Callable[..., tuple[Tensor, Any]]:
    """The library's attention function of that name, as LlamaAttention looks it up."""
    from transformers.models.llama import modeling_llama as upstream

    found: Callable[..., tuple[Tensor, Any]] = upstream.ALL_ATTENTION_FUNCTIONS.get_interface(
        implementation, upstream.eager_attention_forward
    )
    return found


def register_watched(implementation: str) -> str:
    """Register the library's attention under another name, with a look at what it is given; the name.

    Module hooks cannot see q and k after the rotation; the library's registry of attention functions can be
    added to. Only models whose config asks for the new name are affected, and only taps() makes such.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    attention = attention_function(implementation)

    def watched(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        *given: Any,
        conformance_show: Callable[[str, Tensor], None],
        **named: Any,
    ) -> tuple[Tensor, Any]:
        conformance_show(f"layers.{module.layer_idx}.q_rot", query)
        conformance_show(f"layers.{module.layer_idx}.k_rot", key)
        return attention(module, query, key, *given, **named)

    name = f"conformance-{implementation}"
    AttentionInterface.register(name, watched)
    AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS[implementation])
    return name


class HuggingFaceModel(Model):
    """A LlamaForCausalLM.

    Args:
        model: loaded, in eval mode.
        implementation: of its attention.
    """

    def __init__(self, model: Any, implementation: str) -> None:
        self._model = model
        self._implementation = implementation
        arguments = inspect.signature(type(model).forward).parameters
        self._cache_argument = "cache" if "cache" in arguments else "past_key_values"

    def logits(self, tokens_BT: Tensor, positions: Tensor | None = None) -> Tensor:
        """The model's own forward."""
        given: dict[str, Tensor] = {}
        if positions is not None:
            # With neither cache nor mask the library takes a jump in position_ids for the start of another
            # document and lets nothing attend across it. The mask that tokenizers give says: one document.
            given = {
                "position_ids": positions.expand(tokens_BT.shape),
                "attention_mask": torch.ones_like(tokens_BT),
            }
        logits: Tensor = self._model(tokens_BT, use_cache=False, **given).logits
        return logits

    def new_cache(self, batch: int, capacity: int) -> Any:  # noqa: ARG002 - it grows
        """A DynamicCache, which grows by itself."""
        from transformers import DynamicCache

        return DynamicCache(config=self._model.config)

    def step(self, tokens_BT: Tensor, cache: Any) -> Tensor:
        """The model's own forward with a cache; positions and mask follow from the cache's length."""
        logits: Tensor = self._model(tokens_BT, use_cache=True, **{self._cache_argument: cache}).logits
        return logits

    def _around(self, x_BTD: Tensor, positions: Tensor) -> dict[str, Any]:
        """What LlamaModel.forward passes to its layers: tables and causal mask, made by the library."""
        from transformers.masking_utils import create_causal_mask

        given = {
            "config": self._model.config,
            "inputs_embeds": x_BTD,
            "attention_mask": None,
            "cache_position": torch.arange(x_BTD.shape[1], device=x_BTD.device),
            "past_key_values": None,
            "cache": None,
        }
        wanted = inspect.signature(create_causal_mask).parameters
        return {
            "attention_mask": create_causal_mask(**{n: value for n, value in given.items() if n in wanted}),
            "position_embeddings": self._model.model.rotary_emb(x_BTD, position_ids=positions[None]),
        }

    def attention_module(self, x_BTD: Tensor, positions: Tensor, layer: int) -> Tensor:
        """LlamaAttention."""
        attention = self._model.model.layers[layer].self_attn
        y_BTD: Tensor = attention(hidden_states=x_BTD, **self._around(x_BTD, positions))[0]
        return y_BTD

    def mlp(self, x_BTD: Tensor, layer: int) -> Tensor:
        """LlamaMLP."""
        y_BTD: Tensor = self._model.model.layers[layer].mlp(x_BTD)
        return y_BTD

    def block(self, x_BTD: Tensor, positions: Tensor, layer: int) -> Tensor:
        """LlamaDecoderLayer."""
        y_BTD: Tensor = self._model.model.layers[layer](x_BTD, **self._around(x_BTD, positions))
        return y_BTD

    @functools.cached_property
    def _watched(self) -> Any:
        """The same weights under the watched attention."""
        model = modules.share_weights(self._model)
        model.config._attn_implementation = register_watched(self._implementation)  # noqa: SLF001 - as _from_config
        return model

    def watch(self, tokens_BT: Tensor, show: Show) -> None:
        """By module hooks, and q_rot and k_rot where the attention function receives them."""
        config = self._model.config

        def split(tap: str, value: Tensor) -> None:
            heads = tap.rpartition(".")[2] in {"q", "k", "v"}
            show(tap, modules.split_heads(value, config.head_dim) if heads else value)

        layers = config.num_hidden_layers
        inputs = modules.per_layer(layers, LAYER_INPUTS, "model.layers")
        outputs = {
            "model.embed_tokens": "embedding",
            **modules.per_layer(layers, LAYER_OUTPUTS, "model.layers"),
            "model.norm": "final_norm",
            "lm_head": "logits",
        }
        with modules.watching(self._watched, split, inputs=inputs, outputs=outputs):
            self._watched(tokens_BT, use_cache=False, conformance_show=show)

    def state_dict(self) -> dict[str, Tensor]:
        """Its own names are the canonical ones; a tied unembedding is no tensor of its own."""
        own = {name: value.detach().clone() for name, value in self._model.state_dict().items()}
        if self._model.config.tie_word_embeddings:
            del own[modules.HEAD]
        return own

    def held(self) -> list[Held]:
        """See Model.held."""
        return modules.held(self._model)

    def cast(self, dtype: torch.dtype) -> Model:
        """model.to(dtype)."""
        return HuggingFaceModel(modules.cast(self._model, dtype), self._implementation)

    def cache_tensors(self, cache: Any) -> list[Tensor]:
        """Keys and values of every layer of the DynamicCache."""
        return [t for layer in cache.layers for t in (layer.keys, layer.values)]

    def loss(self, tokens_BT: Tensor) -> Tensor:
        """The model's own loss, which it gives where it is handed labels."""
        loss: Tensor = self._model(tokens_BT, labels=tokens_BT, use_cache=False).loss
        return loss

    def gradients(self, tokens_BT: Tensor) -> list[Tensor]:
        """See Model.gradients."""
        return modules.gradients(self._model, lambda m: m(tokens_BT, labels=tokens_BT, use_cache=False).loss)
