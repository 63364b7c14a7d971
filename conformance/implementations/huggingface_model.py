"""A built Hugging Face Llama: forward, cache, parts and taps, all by the library's own modules.

Checked with transformers 5.3 and 5.24, whose cache arguments differ: signatures are read, versions are not.

Shape suffixes: B batch, T tokens, D hidden.
"""

# ruff: noqa: PLC0415 - importing transformers takes seconds: only who uses it pays

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from conformance.implementations import modules
from conformance.implementations.base import Held, Model, Show
from conformance.implementations.huggingface_attention import for_attention, register_watched
from conformance.implementations.huggingface_cache import KINDS, Cache, positions_of
from conformance.implementations.rows import LeftPadded

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


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """What the library says on its way through files is none of a report's; put back as it was."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


class HuggingFaceModel(Model):
    """A LlamaForCausalLM, or a MistralForCausalLM where the config has a sliding window.

    Args:
        model: loaded, in eval mode.
        implementation: of its attention.
    """

    def __init__(self, model: Any, implementation: str) -> None:
        self._model = model
        self._implementation = implementation

    def logits(
        self, tokens_BT: Tensor, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """The model's own forward."""
        given: dict[str, Tensor] = {}
        if positions is not None:
            # With neither cache nor mask the library takes a jump in position_ids for the start of another
            # document and lets nothing attend across it. The mask that tokenizers give says: one document.
            given = {
                "position_ids": positions.expand(tokens_BT.shape),
                "attention_mask": torch.ones_like(tokens_BT),
            }
        if mask is not None and mask.ndim == 2:
            given = {"position_ids": positions_of(mask), **given, "attention_mask": mask.long()}
        elif mask is not None:
            given["attention_mask"] = for_attention(self._implementation, mask[:, None], self._dtype)
        logits: Tensor = self._model(tokens_BT, use_cache=False, **given).logits
        return logits

    @property
    def _dtype(self) -> torch.dtype:
        dtype: torch.dtype = self._model.lm_head.weight.dtype
        return dtype

    def cache_kinds(self) -> tuple[str, ...]:
        """DynamicCache, which grows, and StaticCache."""
        return KINDS

    def new_cache(self, batch: int, capacity: int, kind: str = "") -> Cache:
        """See Cache."""
        return Cache(self._model, batch, capacity, kind or KINDS[0])

    def step(self, tokens_BT: Tensor, cache: Cache) -> Tensor:
        """The model's own forward with a cache."""
        return self._forward(tokens_BT, cache, cache.ahead(tokens_BT))

    def prefill(self, tokens_BT: Tensor, cache: Cache, lengths_B: Tensor) -> Tensor:
        """With the filler moved to the left, as generate() wants it."""
        rows = LeftPadded(tokens_BT, lengths_B)
        return rows.back(self._forward(rows.tokens, cache, cache.ahead(rows.tokens, rows.real)))

    def _forward(self, tokens_BT: Tensor, cache: Cache, given: dict[str, Any]) -> Tensor:
        try:
            logits: Tensor = self._model(tokens_BT, **given).logits
        except Exception:
            cache.forget()
            raise
        cache.taken(tokens_BT.shape[1])
        return logits

    def reset(self, cache: Cache) -> None:
        """See Cache.reset."""
        cache.reset()

    def crop(self, cache: Cache, length: int) -> None:
        """See Cache.crop."""
        cache.crop(length)

    def reorder(self, cache: Cache, rows_B: Tensor) -> None:
        """See Cache.reorder."""
        cache.reorder(rows_B)

    def _around(self, x_BTD: Tensor, positions: Tensor) -> dict[str, Any]:
        """What the model's forward passes to its layers: tables and causal mask, made by the library."""
        from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask

        window = getattr(self._model.config, "sliding_window", None)
        create = create_causal_mask if window is None else create_sliding_window_causal_mask
        given = {
            "config": self._model.config,
            "inputs_embeds": x_BTD,
            "attention_mask": None,
            "cache_position": torch.arange(x_BTD.shape[1], device=x_BTD.device),
            "past_key_values": None,
            "cache": None,
        }
        wanted = inspect.signature(create).parameters
        return {
            "attention_mask": create(**{n: value for n, value in given.items() if n in wanted}),
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

    def reloaded(self, folder: Path) -> Model:
        """save_pretrained and from_pretrained, which builds on the meta device."""
        with without_progress_bars():
            self._model.save_pretrained(folder)
            again = type(self._model).from_pretrained(
                folder, dtype=self._dtype, attn_implementation=self._implementation
            )
        return HuggingFaceModel(again.eval().requires_grad_(False), self._implementation)

    def cache_tensors(self, cache: Cache) -> list[Tensor]:
        """See Cache.tensors."""
        return cache.tensors()

    def loss(self, tokens_BT: Tensor) -> Tensor:
        """The model's own loss, which it gives where it is handed labels."""
        loss: Tensor = self._model(tokens_BT, labels=tokens_BT, use_cache=False).loss
        return loss

    def gradients(self, tokens_BT: Tensor) -> list[Tensor]:
        """See Model.gradients."""
        return modules.gradients(self._model, lambda m: m(tokens_BT, labels=tokens_BT, use_cache=False).loss)
