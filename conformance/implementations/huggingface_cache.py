"""The KV caches of transformers, used as its own generate() uses them.

Shape suffixes: B batch, T tokens, S slots, G kv heads, d head width.
"""

# ruff: noqa: PLC0415 - importing transformers takes seconds: only who uses it pays

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
from torch import Tensor

from conformance.implementations.base import Unsupported

KINDS = ("dynamic", "static")


def positions_of(real_BT: Tensor) -> Tensor:
    """Position ids [B, T] counted over the real tokens, 0 in front of them: as generate() counts them."""
    return (real_BT.long().cumsum(-1) - 1).clamp(min=0)


class Cache:
    """A DynamicCache or a StaticCache, and what generate() remembers beside it: the attention mask.

    Of a config with a sliding window the library makes caches that keep no more than the window.

    Args:
        model: LlamaForCausalLM or MistralForCausalLM.
        batch, capacity: of a static one; a dynamic one grows.
        kind: of KINDS.
    """

    def __init__(self, model: Any, batch: int, capacity: int, kind: str) -> None:
        self.own = _dynamic(model) if kind == "dynamic" else _static(model, batch, capacity)
        self.kind = kind
        self._arguments = inspect.signature(type(model).forward).parameters
        self._length = 0
        self._real_BS: Tensor | None = None

    def ahead(self, tokens_BT: Tensor, real_BT: Tensor | None = None) -> dict[str, Any]:
        """What the next tokens are given to forward with.

        Args:
            tokens_BT: token ids.
            real_BT: bool, False = padding; only an empty cache has room for it.
        """
        tokens, device = tokens_BT.shape[1], tokens_BT.device
        given = {"cache" if "cache" in self._arguments else "past_key_values": self.own, "use_cache": True}
        if "cache_position" in self._arguments:
            given["cache_position"] = torch.arange(self._length, self._length + tokens, device=device)
        if real_BT is None and self._real_BS is None:
            return given
        new_BT = torch.ones_like(tokens_BT, dtype=torch.bool) if real_BT is None else real_BT
        self._real_BS = new_BT if self._real_BS is None else torch.cat([self._real_BS, new_BT], dim=1)
        positions = positions_of(self._real_BS)[:, self._length :]
        return {**given, "attention_mask": self._real_BS.long(), "position_ids": positions}

    def taken(self, tokens: int) -> None:
        """So many more are in the cache."""
        self._length += tokens

    def forget(self) -> None:
        """What was prepared for tokens that were then refused."""
        if self._real_BS is not None:
            self._real_BS = self._real_BS[:, : self._length]

    def tensors(self) -> list[Tensor]:
        """Keys and values of every layer, [B, G, S, d]; none before a dynamic one has tokens."""
        held = [t for layer in self.own.layers for t in (layer.keys, layer.values)]
        return [t for t in held if t is not None]

    def reset(self) -> None:
        """Cache.reset.

        Raises:
            Unsupported: it would leave zeros behind.
        """
        if self.kind == "dynamic" and not dynamic_reset_empties():
            raise Unsupported(
                "transformers' DynamicCache.reset() fills what it keeps with zeros and keeps its length "
                "(huggingface/transformers#48809): a StaticCache can be used again"
            )
        self.own.reset()
        self._length, self._real_BS = 0, None

    def crop(self, length: int) -> None:
        """DynamicCache.crop.

        Raises:
            Unsupported: the cache is static, or a sliding window has dropped what lies behind it.
        """
        if self.kind == "static":
            raise Unsupported("transformers' StaticCache has no crop")
        try:
            self.own.crop(length)
        except ValueError as error:
            raise Unsupported(f"transformers refuses: {error}") from error
        self._length = length
        self.forget()

    def reorder(self, rows_B: Tensor) -> None:
        """Cache.reorder_cache, as beam search calls it; the attention mask goes with the rows."""
        self.own.reorder_cache(rows_B)
        if self._real_BS is not None:
            self._real_BS = self._real_BS[rows_B]


@functools.cache
def dynamic_reset_empties() -> bool:
    """Whether a dynamic cache holds nothing after its reset; in some versions it holds zeros."""
    from transformers.cache_utils import DynamicLayer

    layer, one = DynamicLayer(), torch.ones(1, 1, 1, 1)
    layer.update(one, one)
    layer.reset()
    return int(layer.get_seq_length()) == 0


def _dynamic(model: Any) -> Any:
    from transformers import DynamicCache

    return DynamicCache(config=model.config)


def _static(model: Any, batch: int, capacity: int) -> Any:
    from transformers import StaticCache

    config, like = model.config, model.lm_head.weight
    cache = StaticCache(config=config, max_cache_len=capacity)
    # Allocated at once, as for torch.export: what is in unwritten slots can then be seen to.
    cache.early_initialization(batch, config.num_key_value_heads, config.head_dim, like.dtype, like.device)
    return cache
