"""Wrong about the slots of a cache: those that nothing was written into, and those that there are not."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from conformance.faults.cache import cached
from conformance.faults.catalogue import Fault, model_fault, ops_fault
from conformance.implementations.base import Unsupported
from conformance.implementations.reference import ReferenceModel
from reference_impl import KVCache, LlamaConfig, Ops
from reference_impl.attention import attention
from reference_impl.block import Step, Weights, attention_module
from reference_impl.cache import WindowCache
from reference_impl.ops import Pair

LOWERED = 50.0  # by so much scores are far below all others, if keys are as they commonly are


def whole_buffer(x: Tensor, weights: Weights, step: Step) -> Tensor:
    """Attention is given all slots of the cache, and a mask that hides those behind the last token."""
    cache = step.cache
    if cache is None or cache.kept < cache.length:
        return attention_module(x, weights, step)

    def wide(q: Tensor, _k: Tensor, _v: Tensor, mask: Tensor | None, scale: float, ops: Ops) -> Tensor:
        assert mask is not None
        mask = functional.pad(mask, (0, cache.k.shape[3] - mask.shape[-1]))
        return step.ops.attention(q, cache.k[step.layer], cache.v[step.layer], mask, scale, ops)

    return attention_module(x, weights, replace(step, ops=replace(step.ops, attention=wide)))


def unmasked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, ops: Ops) -> Tensor:
    """Single tokens are given no mask: nothing is thought to stand behind them."""
    return attention(q, k, v, None if q.shape[2] == 1 else mask, scale, ops)


def lowered(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, ops: Ops) -> Tensor:
    """Scores of what is hidden are lowered, and no more."""
    k, v = (ops.expand_kv(t, q.shape[1] // t.shape[1]) for t in (k, v))
    scores = q @ k.transpose(-2, -1) * scale
    lowered = scores if mask is None else scores - (LOWERED * ~mask).to(scores.dtype)
    return ops.softmax(lowered) @ v


def hidden_late(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, ops: Ops) -> Tensor:
    """What nobody sees is hidden behind the softmax, when its share is gone from the others."""
    if mask is None:
        return attention(q, k, v, mask, scale, ops)
    k, v = (ops.expand_kv(t, q.shape[1] // t.shape[1]) for t in (k, v))
    taken = mask | ~mask.any(dim=-2, keepdim=True)
    scores = (q @ k.transpose(-2, -1) * scale).masked_fill(~taken, torch.finfo(q.dtype).min)
    return ops.softmax(scores).masked_fill(~mask, 0) @ v


class Closed(ReferenceModel):
    """A cache that nobody can look into: unwritten slots hold zeros."""

    def cache_tensors(self, cache: KVCache) -> list[Tensor]:  # noqa: ARG002 - see above
        """See Model.cache_tensors."""
        raise Unsupported("does not offer cache_tensors")


class Copied(ReferenceModel):
    """Shows copies of the keys and values."""

    def cache_tensors(self, cache: KVCache) -> list[Tensor]:
        """See Model.cache_tensors."""
        return [t.clone() for t in super().cache_tensors(cache)]


class Blank(ReferenceModel):
    """Shows tensors of the right size that nothing is ever written into."""

    def cache_tensors(self, cache: KVCache) -> list[Tensor]:
        """See Model.cache_tensors."""
        return [torch.zeros_like(t) for t in super().cache_tensors(cache)]


class LastOverwritten(KVCache):
    """The first slot of a chunk is clamped so that it fits, as jax.lax.dynamic_update_slice does."""

    first = 0

    @property
    def kept(self) -> int:
        """See KVCache.kept."""
        return self.first

    def require_room(self, tokens: int) -> None:
        """See KVCache.require_room."""
        if tokens > self.capacity:
            super().require_room(tokens)
        self.first = min(self.length, self.capacity - tokens)

    def extend(self, layer: int, k_BGTd: Tensor, v_BGTd: Tensor) -> Pair:
        """See KVCache.extend."""
        end = self.first + k_BGTd.shape[2]
        self.k[layer, :, :, self.first : end] = k_BGTd
        self.v[layer, :, :, self.first : end] = v_BGTd
        return self.k[layer, :, :, :end], self.v[layer, :, :, :end]

    def advance(self, tokens: int) -> None:
        """See KVCache.advance."""
        super().advance(tokens)
        self.first = min(self.length, self.capacity)

    def reset(self) -> None:
        """See KVCache.reset."""
        super().reset()
        self.first = 0


class FirstOverwritten(WindowCache):
    """What does not fit takes the place of the oldest, although there is no window."""

    def __init__(self, config: LlamaConfig, batch: int, capacity: int, dtype: torch.dtype) -> None:
        super().__init__(replace(config, sliding_window=capacity + 1), batch, capacity, dtype)


class FilledFirst(KVCache):
    """What fits of a chunk is counted, and then the rest is refused."""

    def require_room(self, tokens: int) -> None:
        """See KVCache.require_room."""
        used, self.length = self.length, min(self.length, self.capacity - tokens)
        if self.length < used:
            self.length = self.capacity
            raise ValueError(f"only {self.capacity - used} of {tokens} tokens fit")


class OneLess(KVCache):
    """The last slot is never used."""

    def require_room(self, tokens: int) -> None:
        """See KVCache.require_room."""
        if self.length + tokens >= self.capacity:
            raise ValueError(f"{tokens} more tokens do not fit into {self.capacity}")


class Speechless(KVCache):
    """Refuses without a word."""

    def require_room(self, tokens: int) -> None:
        """See KVCache.require_room."""
        if self.length + tokens > self.capacity:
            raise ValueError


class Counted(ReferenceModel):
    """Positions are counted before it is looked whether there is room for the tokens."""

    def step(self, tokens_BT: Tensor, cache: KVCache) -> Tensor:
        """See Model.step."""
        gap, tokens = getattr(cache, "gap", 0), tokens_BT.shape[1]
        cache.gap = gap + tokens  # type: ignore[attr-defined]
        places = torch.arange(tokens) + cache.length + gap if gap else None
        logits = self.llama(tokens_BT, positions=places, cache=cache)
        cache.gap = gap  # type: ignore[attr-defined]
        return logits


FAULTS: list[Fault] = [
    ops_fault(
        "cache.poison-seen",
        "CACHE-4",
        "huggingface/transformers#30437",
        attention_module=whole_buffer,
        attention=unmasked,
    ),
    model_fault(
        "cache.zeros-seen",
        "CACHE-4",
        "huggingface/transformers#30437",
        Closed,
        attention_module=whole_buffer,
        attention=unmasked,
    ),
    ops_fault("cache.unwritten-lowered", "CACHE-4", attention_module=whole_buffer, attention=lowered),
    ops_fault("cache.unwritten-hidden-late", "CACHE-4", attention_module=whole_buffer, attention=hidden_late),
    model_fault("cache.shows-copies", "CACHE-6", "classical", Copied),
    model_fault("cache.shows-zeros", "CACHE-6", "classical", Blank),
    model_fault("cache.last-overwritten", "CACHE-11", "classical", cached(LastOverwritten)),
    model_fault("cache.first-overwritten", "CACHE-11", "classical", cached(FirstOverwritten)),
    model_fault("cache.filled-first", "CACHE-11", "classical", cached(FilledFirst)),
    model_fault("cache.one-less", "CACHE-11", "classical", cached(OneLess)),
    model_fault("cache.speechless", "CACHE-11", "classical", cached(Speechless)),
    model_fault("cache.counted-before-refused", "CACHE-11", "classical", Counted),
]
