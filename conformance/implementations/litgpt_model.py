"""A built LitGPT Llama: forward, cache, parts and taps, all by the library's own modules.

Shape suffixes: B batch, T tokens, D hidden, H query heads, G kv heads, d head width.
"""

# ruff: noqa: PLC0415 - importing litgpt takes seconds: only who uses it pays

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from conformance.implementations import modules
from conformance.implementations.base import Held, Model, Show, Unsupported

# Module path within a layer → tap.
LAYER_INPUTS = {"attn.proj": "attention", "norm_2": "attn_residual", "mlp.proj": "gated"}
LAYER_OUTPUTS = {
    "norm_1": "attn_norm",
    "attn.qkv": "qkv",
    "attn.proj": "attn_out",
    "norm_2": "mlp_norm",
    "mlp.fc_1": "gate",
    "mlp.fc_2": "up",
    "mlp.proj": "mlp_out",
    "": "mlp_residual",
}


@dataclass
class Cache:
    """LitGPT keeps its cache inside the model: here a GPT on shared weights with buffers of its own.

    Args:
        gpt: computes with the model's very parameters.
        lengths: [B], tokens of each row so far.
    """

    gpt: Any
    lengths: Tensor


class LitGPTModel(Model):
    """A litgpt.GPT.

    Args:
        gpt: loaded, in eval mode.
        tied: whether lm_head.weight is left out of the canonical weights.
    """

    def __init__(self, gpt: Any, *, tied: bool) -> None:
        self._gpt = gpt
        self._tied = tied

    def _require_room(self, tokens: int) -> None:
        if tokens > self._gpt.config.block_size:
            raise Unsupported(
                f"LitGPT computes at most max_position_embeddings = {self._gpt.config.block_size} tokens, "
                f"asked for {tokens}"
            )

    def logits(
        self, tokens_BT: Tensor, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """The model's own forward.

        Raises:
            Unsupported: a mask, or positions other than 0 … T−1 (its forward has no argument for either, but
                places in a cache).
            ValueError: more tokens than its table has rows; the library's own.
        """
        if mask is not None:
            raise Unsupported("LitGPT's forward takes no mask: it knows no padding, and no documents")
        tokens = tokens_BT.shape[1]
        if positions is not None and not (positions == torch.arange(tokens, device=positions.device)).all():
            raise Unsupported("LitGPT's forward takes no positions other than 0 … T−1")
        logits: Tensor = self._gpt(tokens_BT)
        return logits

    def new_cache(self, batch: int, capacity: int, kind: str = "") -> Cache:  # noqa: ARG002 - there is one
        """Its own KV cache, of a second GPT on the same weights; a ring where there is a sliding window."""
        gpt = modules.share_weights(self._gpt)
        weight = gpt.lm_head.weight
        gpt.max_seq_length = capacity
        # A new length builds the table anew, in float32: rounded as in build().
        gpt.cos, gpt.sin = gpt.cos.to(weight.dtype), gpt.sin.to(weight.dtype)
        gpt.set_kv_cache(batch, device=weight.device, dtype=weight.dtype)
        return Cache(gpt, torch.zeros(batch, dtype=torch.int64, device=weight.device))

    def step(self, tokens_BT: Tensor, cache: Cache) -> Tensor:
        """The forward pass of litgpt.generate: places in the cache, and where its used part ends."""
        ahead = cache.lengths + tokens_BT.shape[1]
        places = cache.lengths[:, None] + torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        if (places == places[0]).all():  # one row of places for all, as generate() gives it
            places = places[0]
        logits = self._cached(tokens_BT, cache, places, int(ahead.max()))
        cache.lengths = ahead
        return logits

    def _cached(self, tokens_BT: Tensor, cache: Cache, places: Tensor, end: int) -> Tensor:
        window = self._gpt.config.sliding_window_size
        try:
            logits: Tensor = cache.gpt(tokens_BT, places, input_pos_maxp1=end)
        except ValueError as error:
            if window is not None and tokens_BT.shape[1] > window:
                raise Unsupported(
                    f"LitGPT refuses a chunk that is longer than the window: {error}"
                ) from error
            raise
        return logits

    def prefill(self, tokens_BT: Tensor, cache: Cache, lengths_B: Tensor) -> Tensor:
        """The filler takes places, over which each row then goes on at its own."""
        places = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        logits = self._cached(tokens_BT, cache, places, len(places))
        cache.lengths = lengths_B.clone()
        return logits

    def reset(self, cache: Cache) -> None:
        """KVCache.reset_parameters of every layer, as litgpt.LLM calls it before the next prompt."""
        for block in cache.gpt.transformer.h:
            block.attn.kv_cache.reset_parameters()
        cache.lengths = torch.zeros_like(cache.lengths)

    def crop(self, cache: Cache, length: int) -> None:
        """Places are given with every step: those behind are written anew.

        Raises:
            Unsupported: a sliding window's ring has written over what lies behind it.
        """
        window = self._gpt.config.sliding_window_size
        if window is not None and int(cache.lengths.max()) > window:
            raise Unsupported("a sliding window's cache has dropped what lies behind it: no way back")
        cache.lengths = torch.full_like(cache.lengths, length)

    def _tables(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """What GPT.forward passes to its blocks: rows of its buffers, [1, T, d]."""
        self._require_room(int(positions.max()) + 1)
        return self._gpt.cos[positions][None], self._gpt.sin[positions][None]

    def attention_module(self, x_BTD: Tensor, positions: Tensor, layer: int) -> Tensor:
        """CausalSelfAttention."""
        y_BTD: Tensor = self._gpt.transformer.h[layer].attn(x_BTD, *self._tables(positions))
        return y_BTD

    def mlp(self, x_BTD: Tensor, layer: int) -> Tensor:
        """LLaMAMLP."""
        y_BTD: Tensor = self._gpt.transformer.h[layer].mlp(x_BTD)
        return y_BTD

    def block(self, x_BTD: Tensor, positions: Tensor, layer: int) -> Tensor:
        """Block."""
        y_BTD: Tensor = self._gpt.transformer.h[layer](x_BTD, *self._tables(positions))
        return y_BTD

    def watch(self, tokens_BT: Tensor, show: Show) -> None:
        """By module hooks; q_rot and k_rot where scaled_dot_product_attention receives them."""
        self._require_room(tokens_BT.shape[1])
        gpt, config = modules.share_weights(self._gpt), self._gpt.config

        def split(tap: str, value: Tensor) -> None:
            layer, _, arrow = tap.rpartition(".")
            if arrow == "qkv":
                heads, ends = (
                    modules.split_heads(value, config.head_size),
                    config.n_head + config.n_query_groups,
                )
                show(f"{layer}.q", heads[:, : config.n_head])
                show(f"{layer}.k", heads[:, config.n_head : ends])
                show(f"{layer}.v", heads[:, ends:])
            else:
                show(tap, value)

        inputs = modules.per_layer(config.n_layer, LAYER_INPUTS, "transformer.h")
        outputs = {
            "transformer.wte": "embedding",
            **modules.per_layer(config.n_layer, LAYER_OUTPUTS, "transformer.h"),
            "transformer.ln_f": "final_norm",
            "lm_head": "logits",
        }
        for block in gpt.transformer.h:
            watch_attention(block.attn, show)
        with modules.watching(gpt, split, inputs=inputs, outputs=outputs):
            gpt(tokens_BT)

    def state_dict(self) -> dict[str, Tensor]:
        """Its weights through copy_weights_llama."""
        from litgpt.scripts.convert_lit_checkpoint import copy_weights_llama

        canonical: dict[str, Tensor] = {}
        copy_weights_llama(self._gpt.config, canonical, self._gpt.state_dict(), untie_weights=self._tied)
        return {name: value.clone() for name, value in canonical.items()}

    def held(self) -> list[Held]:
        """See Model.held."""
        return modules.held(self._gpt)

    def cast(self, dtype: torch.dtype) -> Model:
        """gpt.to(dtype), as Fabric does under "bf16-true"."""
        return LitGPTModel(modules.cast(self._gpt, dtype), tied=self._tied)

    def cache_tensors(self, cache: Cache) -> list[Tensor]:
        """Keys and values of every layer's KVCache."""
        caches = [block.attn.kv_cache for block in cache.gpt.transformer.h]
        return [t for own in caches for t in (own.k, own.v)]

    def reloaded(self, folder: Path) -> Model:
        """Its state_dict by safetensors, into a GPT built on the meta device as its pretraining does."""
        from litgpt.model import GPT
        from litgpt.utils import reset_parameters

        gpt, file = self._gpt, folder / "model.safetensors"
        save_file({name: w.contiguous() for name, w in gpt.state_dict().items()}, file)
        with torch.device("meta"), modules.default_dtype(gpt.lm_head.weight.dtype):
            again = GPT(gpt.config)
        again.to_empty(device=gpt.lm_head.weight.device)
        with modules.NoInit():
            reset_parameters(again)  # makes the tables
        again.to(dtype=gpt.lm_head.weight.dtype).load_state_dict(load_file(file), strict=True)
        return LitGPTModel(again.eval().requires_grad_(False), tied=self._tied)

    def loss(self, tokens_BT: Tensor) -> Tensor:
        """See loss_of."""
        return loss_of(self._gpt, tokens_BT)

    def gradients(self, tokens_BT: Tensor) -> list[Tensor]:
        """See Model.gradients."""
        return modules.gradients(self._gpt, lambda gpt: loss_of(gpt, tokens_BT))


def loss_of(gpt: Any, tokens_BT: Tensor) -> Tensor:
    """The loss of litgpt.pretrain: its chunked_cross_entropy, shifted as its training loop shifts."""
    from litgpt.utils import chunked_cross_entropy

    loss: Tensor = chunked_cross_entropy(gpt(tokens_BT)[:, :-1], tokens_BT[:, 1:])
    return loss


def watch_attention(attention: Any, show: Callable[[str, Tensor], None]) -> None:
    """Have this one attention module show q and k as its scaled_dot_product_attention is given them.

    Module hooks cannot see that method, so it is overridden on the instance, which taps() made for itself.
    There the kv heads are expanded already: k_rot is the copy in each group, if all copies agree.
    """
    compute = attention.scaled_dot_product_attention
    groups = attention.config.n_query_groups

    def watched(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        show(f"layers.{attention.block_idx}.q_rot", q)
        copies = k.reshape(k.shape[0], groups, -1, *k.shape[2:])
        if torch.equal(copies, copies[:, :, :1].expand_as(copies)):
            show(f"layers.{attention.block_idx}.k_rot", copies[:, :, 0])
        y: Tensor = compute(q, k, v, mask)
        return y

    attention.scaled_dot_product_attention = watched
