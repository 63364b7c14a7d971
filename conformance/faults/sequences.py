"""Caches in which one sequence reaches another: of another cache, of another row, or of earlier tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from conformance.faults.cache import cached
from conformance.faults.catalogue import Fault, model_fault, ops_fault
from conformance.implementations.base import Implementation
from conformance.implementations.reference import Reference, ReferenceModel
from reference_impl import KVCache, Llama
from reference_impl.ops import padded_positions


class OneInside(ReferenceModel):
    """Caches of one size are one memory, which the model keeps."""

    def __init__(self, llama: Llama) -> None:
        super().__init__(llama)
        self.kept: dict[torch.Size, KVCache] = {}

    def new_cache(self, batch: int, capacity: int, kind: str = "") -> KVCache:
        """See Model.new_cache."""
        cache = super().new_cache(batch, capacity, kind)
        kept = self.kept.setdefault(cache.k.shape, cache)
        cache.k, cache.v = kept.k, kept.v
        return cache


def of_all_models() -> Implementation:
    """The first cache of every model is one memory, and so is the second."""
    memory: dict[Any, KVCache] = {}

    class Shared(ReferenceModel):
        made = 0

        def new_cache(self, batch: int, capacity: int, kind: str = "") -> KVCache:
            cache = super().new_cache(batch, capacity, kind)
            self.made += 1
            kept = memory.setdefault((self.made % 2, cache.k.shape, cache.k.dtype), cache)
            cache.k, cache.v = kept.k, kept.v
            return cache

    return Reference(None, "fault:cache.of-all-models", Shared)


class LastReset(ReferenceModel):
    """The cache that was made last is reset, whichever is meant."""

    last: KVCache

    def new_cache(self, batch: int, capacity: int, kind: str = "") -> KVCache:
        """See Model.new_cache."""
        self.last = super().new_cache(batch, capacity, kind)
        return self.last

    def reset(self, cache: KVCache) -> None:  # noqa: ARG002 - see above
        """See Model.reset."""
        self.last.reset()


class Zeroed(KVCache):
    """A reset clears the memory and goes on behind it."""

    def reset(self) -> None:
        """See KVCache.reset."""
        self.k.zero_()
        self.v.zero_()


class PaddingKept(KVCache):
    """A reset forgets the tokens, but not which of them were padding."""

    known: Tensor | None = None

    def reset(self) -> None:
        """See KVCache.reset."""
        self.known = self.real
        super().reset()

    def remember(self, tokens: int, real_BT: Tensor | None) -> Tensor | None:
        """See KVCache.remember."""
        if real_BT is None and self.known is not None:
            real_BT = torch.ones(len(self.processed), tokens, dtype=torch.bool)
            known = self.known[:, self.length : self.length + tokens]
            real_BT[:, : known.shape[1]] = known
        return super().remember(tokens, real_BT)


def longest_for_all(processed_B: Tensor, real_BT: Tensor) -> Tensor:
    """Rows of different length go on where the longest ends."""
    return padded_positions(processed_B.amax().expand_as(processed_B), real_BT)


def counted_anew(processed_B: Tensor, real_BT: Tensor) -> Tensor:
    """In a padded batch the positions of a step are counted over the tokens at hand alone."""
    return padded_positions(torch.zeros_like(processed_B), real_BT)


def padding_seen(mask: Tensor, real_BS: Tensor) -> Tensor:
    """What is padding is known of the tokens at hand alone, not of those in the cache."""
    queries, keys = mask.shape
    seen = real_BS.clone()
    seen[:, : keys - queries] = True
    return mask & seen[:, None, None, :]


class LengthsNotReordered(KVCache):
    """The length of a row stays where it was when the rows are reordered."""

    def reorder(self, rows_B: Tensor) -> None:
        """See KVCache.reorder."""
        lengths = self.processed
        super().reorder(rows_B)
        self.processed = lengths


class Drafts(ReferenceModel):
    """Goes on at other positions than behind what is stored, as far off as the cache says."""

    def step(self, tokens_BT: Tensor, cache: KVCache) -> Tensor:
        """See Model.step."""
        off = getattr(cache, "off", 0)
        places = torch.arange(tokens_BT.shape[1]) + cache.length + off
        return self.llama(tokens_BT, positions=places if off else None, cache=cache)

    def reset(self, cache: KVCache) -> None:
        """See Model.reset."""
        cache.off = 0  # type: ignore[attr-defined]
        super().reset(cache)


class PositionsKept(Drafts):
    """Positions are not rolled back."""

    def crop(self, cache: KVCache, length: int) -> None:
        """See Model.crop."""
        cache.off = getattr(cache, "off", 0) + cache.length - length  # type: ignore[attr-defined]
        super().crop(cache, length)


class KeysKept(Drafts):
    """Positions alone are rolled back."""

    def crop(self, cache: KVCache, length: int) -> None:
        """See Model.crop."""
        cache.off = length - cache.length  # type: ignore[attr-defined]


class OneKept(ReferenceModel):
    """One token of the draft is kept."""

    def crop(self, cache: KVCache, length: int) -> None:
        """See Model.crop."""
        super().crop(cache, min(length + 1, cache.length))


class NothingDropped(ReferenceModel):
    """A roll back that is not one."""

    def crop(self, cache: KVCache, length: int) -> None:
        """See Model.crop."""


class NoBeams(KVCache):
    """Rows stay where they are."""

    def reorder(self, rows_B: Tensor) -> None:
        """See KVCache.reorder."""


class KeysAlone(KVCache):
    """Values stay where they are."""

    def reorder(self, rows_B: Tensor) -> None:
        """See KVCache.reorder."""
        values = self.v
        super().reorder(rows_B)
        self.v = values


class FirstLayerAlone(KVCache):
    """Later layers stay as they are."""

    def reorder(self, rows_B: Tensor) -> None:
        """See KVCache.reorder."""
        keys, values = self.k, self.v
        super().reorder(rows_B)
        self.k[1:], self.v[1:] = keys[1:], values[1:]


class InPlace(KVCache):
    """Row after row is copied within the memory: rows that were overwritten are copied on."""

    def reorder(self, rows_B: Tensor) -> None:
        """See KVCache.reorder."""
        for to, row in enumerate(rows_B.tolist()):
            self.k[:, to], self.v[:, to] = self.k[:, row].clone(), self.v[:, row].clone()


class Scattered(KVCache):
    """Row i goes to rows[i], where it should come from there."""

    def reorder(self, rows_B: Tensor) -> None:
        """See KVCache.reorder."""
        self.k[:, rows_B], self.v[:, rows_B] = self.k.clone(), self.v.clone()


FAULTS: list[Fault] = [
    model_fault("cache.one-inside", "CACHE-5", "classical", OneInside),
    Fault(name="cache.of-all-models", requirement="CACHE-5", make=of_all_models, source="classical"),
    model_fault("cache.last-reset", "CACHE-5", "classical", LastReset),
    model_fault("cache.zeroed-on-reset", "CACHE-5", "classical", cached(Zeroed)),
    model_fault("cache.padding-kept-on-reset", "CACHE-5", "classical", cached(PaddingKept)),
    ops_fault(
        "cache.longest-for-all", "CACHE-9", "Comfy-Org/ComfyUI#15698", padded_positions=longest_for_all
    ),
    ops_fault("cache.padding-seen", "CACHE-9", hide_padding=padding_seen),
    ops_fault("cache.padded-counted-anew", "CACHE-9", "mosaicml/examples#257", padded_positions=counted_anew),
    model_fault("cache.lengths-not-reordered", "CACHE-9", "classical", cached(LengthsNotReordered)),
    model_fault("cache.crop-positions-kept", "CACHE-10", "classical", PositionsKept),
    model_fault("cache.crop-keys-kept", "CACHE-10", "classical", KeysKept),
    model_fault("cache.crop-one-kept", "CACHE-10", "classical", OneKept),
    model_fault("cache.crop-nothing", "CACHE-10", "classical", NothingDropped),
    model_fault("cache.no-beams", "CACHE-10", "huggingface/transformers#46612", cached(NoBeams)),
    model_fault("cache.beams-keys-alone", "CACHE-10", "classical", cached(KeysAlone)),
    model_fault("cache.beams-first-layer", "CACHE-10", "classical", cached(FirstLayerAlone)),
    model_fault("cache.beams-in-place", "CACHE-10", "classical", cached(InPlace)),
    model_fault("cache.beams-scattered", "CACHE-10", "classical", cached(Scattered)),
]
