"""Wrong caches of a sliding window; where there is none they are right."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from conformance.faults.cache import Cached
from conformance.faults.catalogue import Fault, model_fault, ops_fault
from reference_impl import KVCache, LlamaConfig
from reference_impl.attention import in_window
from reference_impl.block import Step, Weights, attention_module
from reference_impl.cache import WindowCache
from reference_impl.ops import Pair


class WindowCached(Cached):
    """A model with another cache, where there is a window."""

    def new_cache(self, batch: int, capacity: int, kind: str = "") -> KVCache:
        """See Model.new_cache."""
        if self.llama.config.sliding_window is None:
            return self.llama.new_cache(batch, capacity)
        return super().new_cache(batch, capacity, kind)


class OneShort(WindowCache):
    """One key less is kept than is seen."""

    def __init__(self, config: LlamaConfig, batch: int, capacity: int, dtype: torch.dtype) -> None:
        assert config.sliding_window is not None
        super().__init__(replace(config, sliding_window=config.sliding_window - 1), batch, capacity, dtype)


class OneMore(WindowCache):
    """One key more is kept."""

    def __init__(self, config: LlamaConfig, batch: int, capacity: int, dtype: torch.dtype) -> None:
        assert config.sliding_window is not None
        super().__init__(replace(config, sliding_window=config.sliding_window + 1), batch, capacity, dtype)


def one_more(queries: int, keys: int, window: int, device: torch.device | None = None) -> Tensor:
    """Behind a cache one key more is seen: the token at hand is not counted."""
    return in_window(queries, keys, window + (queries < keys), device)


def boundless(queries: int, keys: int, window: int, device: torch.device | None = None) -> Tensor:
    """Behind a cache every key is seen."""
    return in_window(queries, keys, window if queries == keys else keys, device)


class KeptAsLength(WindowCache):
    """The number of keys that are kept is taken for the number of tokens processed."""

    def advance(self, tokens: int) -> None:
        """See KVCache.advance."""
        super().advance(tokens)
        self.length = self.kept


class RingOrder(WindowCache):
    """Keys in the order of their slots in the ring, under a mask that takes them to be in order of time."""

    def extend(self, layer: int, k_BGTd: Tensor, v_BGTd: Tensor) -> Pair:
        """See KVCache.extend."""
        tokens, turned = k_BGTd.shape[2], max(self.length - self.most, 0) % self.most
        k, v = super().extend(layer, k_BGTd, v_BGTd)
        kept = (t[:, :, :-tokens].roll(turned, dims=2) for t in (k, v))
        k, v = (torch.cat([old, t[:, :, -tokens:]], dim=2) for old, t in zip(kept, (k, v), strict=True))
        return k, v


class FirstKept(WindowCache):
    """Of a chunk that is longer than the window the first tokens are kept."""

    def extend(self, layer: int, k_BGTd: Tensor, v_BGTd: Tensor) -> Pair:
        """See KVCache.extend."""
        k, v = super().extend(layer, k_BGTd, v_BGTd)
        if k_BGTd.shape[2] > self.most and self.k.shape[3] == self.most:
            self.k[layer], self.v[layer] = k_BGTd[:, :, : self.most], v_BGTd[:, :, : self.most]
        return k, v


class AsMuchAsThereIsRoomFor(WindowCache):
    """Room for less than the window is a smaller window, and never full."""

    def __init__(self, config: LlamaConfig, batch: int, capacity: int, dtype: torch.dtype) -> None:
        assert config.sliding_window is not None
        narrow = replace(config, sliding_window=min(config.sliding_window, capacity))
        super().__init__(narrow, batch, capacity, dtype)


class PaddingBehind(WindowCache):
    """Of what is known to be padding the first is remembered, not the last."""

    def advance(self, tokens: int) -> None:
        """See KVCache.advance."""
        known = self.real
        super().advance(tokens)
        if known is not None:
            self.real = known[:, : self.most]


def overwritten_seen(x: Tensor, weights: Weights, step: Step) -> Tensor:
    """A chunk is written into the ring before it attends: what it overwrote is gone for its first tokens."""
    window, mask = step.config.sliding_window, step.mask
    if step.cache is None or step.cache.length == 0 or mask is None or window is None:
        return attention_module(x, weights, step)
    mask = mask.clone()
    mask[..., : max(mask.shape[-1] - window, 0)] = False
    return attention_module(x, weights, replace(step, mask=mask))


def cached(cache: type[KVCache]) -> type[WindowCached]:
    """A model with such a cache."""
    return type(f"{cache.__name__}Cached", (WindowCached,), {"cache": cache})


FAULTS: list[Fault] = [
    model_fault("cache.window-one-short", "CACHE-8", "classical", cached(OneShort)),
    model_fault("cache.window-one-more", "CACHE-8", "classical", cached(OneMore), window=one_more),
    model_fault(
        "cache.window-unknown", "CACHE-8", "Lightning-AI/litgpt#2153", cached(KVCache), window=boundless
    ),
    model_fault(
        "cache.window-kept-as-length", "CACHE-8", "rajveer43/VeloxQuant-MLX#389", cached(KeptAsLength)
    ),
    model_fault("cache.window-ring-order", "CACHE-8", "classical", cached(RingOrder)),
    model_fault("cache.window-first-kept", "CACHE-8", "classical", cached(FirstKept)),
    model_fault(
        "cache.window-padding-behind",
        "CACHE-8",
        "fla-org/flash-linear-attention#431",
        cached(PaddingBehind),
    ),
    model_fault("cache.window-of-the-room", "CACHE-11", "classical", cached(AsMuchAsThereIsRoomFor)),
    ops_fault("cache.window-overwritten", "CACHE-8", attention_module=overwritten_seen),
]
