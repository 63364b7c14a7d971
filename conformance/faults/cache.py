"""Wrong caches."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from conformance.faults.catalogue import Fault, model_fault, ops_fault
from conformance.implementations.reference import ReferenceModel
from reference_impl import KVCache, LlamaConfig, Ops
from reference_impl.block import Step, Weights, attention_module
from reference_impl.ops import Pair
from reference_impl.rope import rotate


def stale(x: Tensor, weights: Weights, step: Step) -> Tensor:
    """Single tokens see only what was cached before them last time: their own key is not there yet."""
    if step.cache is None or step.cache.length == 0 or x.shape[1] > 1 or step.mask is None:
        return attention_module(x, weights, step)
    mask = step.mask.clone()
    mask[..., -1] = False
    return attention_module(x, weights, _with_mask(step, mask))


def prefill_alone(x: Tensor, weights: Weights, step: Step) -> Tensor:
    """Several tokens at once are taken for a prefill: they see one another, and nothing that was cached."""
    if step.cache is None or step.cache.length == 0 or x.shape[1] == 1 or step.mask is None:
        return attention_module(x, weights, step)
    mask = step.mask.clone()
    mask[..., : step.cache.length] = False
    return attention_module(x, weights, _with_mask(step, mask))


def rotated_again(x: Tensor, weights: Weights, step: Step) -> Tensor:
    """Cached keys rotated once more in every call."""
    if step.cache is not None and step.cache.length:
        old = step.cache.k[step.layer, :, :, : step.cache.length]
        cos, sin = step.cos[..., :1, :], step.sin[..., :1, :]
        old.copy_(step.ops.apply_rope(old, old, cos, sin)[1])
    return attention_module(x, weights, step)


def own_keys_unrotated(x: Tensor, weights: Weights, step: Step) -> Tensor:
    """The keys at hand go rotated into the cache, and unrotated into the scores of their own call."""

    def wrong(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, ops: Ops) -> Tensor:
        past = k.shape[2] - q.shape[2]
        mixed = torch.cat([k[:, :, :past], rotate(k[:, :, past:], step.cos, -step.sin)], dim=2)
        return step.ops.attention(q, mixed, v, mask, scale, ops)

    if step.cache is None:
        return attention_module(x, weights, step)
    return attention_module(x, weights, replace(step, ops=replace(step.ops, attention=wrong)))


def unwritten_seen(x: Tensor, weights: Weights, step: Step) -> Tensor:
    """Single tokens see the whole of a static cache, slots that nothing was written into as well."""
    cache = step.cache
    if cache is None or x.shape[1] > 1:
        return attention_module(x, weights, step)

    def wrong(q: Tensor, k: Tensor, v: Tensor, _mask: Tensor | None, scale: float, ops: Ops) -> Tensor:
        k, v = (functional.pad(t, (0, 0, 0, cache.capacity - t.shape[2])) for t in (k, v))
        return step.ops.attention(q, k, v, None, scale, ops)

    return attention_module(x, weights, replace(step, ops=replace(step.ops, attention=wrong)))


def first_layer(x: Tensor, weights: Weights, step: Step) -> Tensor:
    """Every layer reads and writes the keys of the first."""
    return attention_module(x, weights, _with_layer(step, 0) if step.cache is not None else step)


def turned_back_and_forth(x: Tensor, weights: Weights, step: Step) -> Tensor:
    """Cached keys turned on to the newest position and back in every call: right, but for what is rounded."""
    if step.cache is not None and step.cache.length:
        old = step.cache.k[step.layer, :, :, : step.cache.length]
        cos, sin = step.cos[..., -1:, :], step.sin[..., -1:, :]
        there = step.ops.apply_rope(old, old, cos, sin)[1]
        old.copy_(step.ops.apply_rope(there, there, cos, -sin)[1])
    return attention_module(x, weights, step)


class WideCache(KVCache):
    """Query heads stored: keys and values are expanded before they are written, not when they are read."""

    def __init__(self, config: LlamaConfig, batch: int, capacity: int, dtype: torch.dtype) -> None:
        super().__init__(
            replace(config, num_key_value_heads=config.num_attention_heads), batch, capacity, dtype
        )
        self.group_size = config.group_size

    def extend(self, layer: int, k_BGTd: Tensor, v_BGTd: Tensor) -> Pair:
        """See KVCache.extend; [B, H, …], so that attention sees groups of one."""
        wide = (t.repeat_interleave(self.group_size, dim=1) for t in (k_BGTd, v_BGTd))
        return super().extend(layer, *wide)


class LongCache(KVCache):
    """Room for the longest context, whatever is asked for."""

    def __init__(self, config: LlamaConfig, batch: int, capacity: int, dtype: torch.dtype) -> None:
        super().__init__(config, batch, max(capacity, config.max_position_embeddings), dtype)


class StaticCache(KVCache):
    """Room for 4096 tokens, as a static cache has it."""

    def __init__(self, config: LlamaConfig, batch: int, capacity: int, dtype: torch.dtype) -> None:
        super().__init__(config, batch, max(capacity, 4096), dtype)


class Float32Cache(KVCache):
    """Float32, whatever the dtype of the model."""

    def __init__(self, config: LlamaConfig, batch: int, capacity: int, _dtype: torch.dtype) -> None:
        super().__init__(config, batch, capacity, torch.float32)

    def extend(self, layer: int, k_BGTd: Tensor, v_BGTd: Tensor) -> Pair:
        """See KVCache.extend; in the dtype of the model again."""
        k, v = super().extend(layer, k_BGTd, v_BGTd)
        return k.to(k_BGTd.dtype), v.to(v_BGTd.dtype)


class Cached(ReferenceModel):
    """A model with another cache."""

    cache: ClassVar[type[KVCache]] = KVCache

    def new_cache(self, batch: int, capacity: int, kind: str = "") -> KVCache:  # noqa: ARG002 - there is one
        """See Model.new_cache."""
        return self.cache(self.llama.config, batch, capacity, self.llama.dtype)


def cached(cache: type[KVCache]) -> type[Cached]:
    """A model with such a cache."""
    return type(f"{cache.__name__}Cached", (Cached,), {"cache": cache})


class LeftOver(ReferenceModel):
    """A model that keeps a cache of its own from one full pass to the next."""

    kept: KVCache | None = None

    def logits(
        self, tokens_BT: Tensor, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """See Model.logits."""
        if mask is not None:
            return super().logits(tokens_BT, positions, mask)
        batch, tokens = tokens_BT.shape
        if self.kept is None or self.kept.length != tokens or self.kept.k.shape[1] != batch:
            self.kept = self.new_cache(batch, 2 * tokens)
        return self.llama(tokens_BT, positions=positions, cache=self.kept)


def _with_mask(step: Step, mask: Tensor) -> Step:
    return Step(**{**vars(step), "mask": mask})


def _with_layer(step: Step, layer: int) -> Step:
    return Step(**{**vars(step), "layer": layer})


FAULTS: list[Fault] = [
    ops_fault("cache.own-key-missing", "CACHE-1", attention_module=stale),
    ops_fault(
        "cache.own-keys-unrotated", "CACHE-1", "kvcache-ai/sglang#66", attention_module=own_keys_unrotated
    ),
    model_fault(
        "cache.unwritten-seen",
        "CACHE-1",
        "huggingface/transformers#30437",
        cached(StaticCache),
        attention_module=unwritten_seen,
    ),
    model_fault("cache.left-over", "ATTN-11", "classical", LeftOver),
    ops_fault("cache.prefill-alone", "CACHE-2", "huggingface/candle#3743", attention_module=prefill_alone),
    ops_fault("cache.rotated-again", "CACHE-1", "NeuraLegion/shainet#110", attention_module=rotated_again),
    ops_fault("cache.one-layer", "CACHE-1", attention_module=first_layer),
    ops_fault(
        "cache.turned-back-and-forth",
        "CACHE-12",
        "ggml-org/llama.cpp#4097",
        attention_module=turned_back_and_forth,
    ),
    model_fault("cache.query-heads", "CACHE-6", "tinygrad/tinygrad#2267", cached(WideCache)),
    model_fault("cache.whole-context", "CACHE-6", "Lightning-AI/litgpt#1590", cached(LongCache)),
    model_fault("cache.float32", "CACHE-7", "meta-pytorch/torchtune#398", cached(Float32Cache)),
]
