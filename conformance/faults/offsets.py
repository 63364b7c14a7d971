"""Wrong positions of what comes behind a cache."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from conformance.faults.catalogue import Fault, llama_fault, model_fault, ops_fault
from conformance.faults.rope import since_first
from conformance.implementations.reference import ReferenceModel
from reference_impl import KVCache, Llama
from reference_impl.block import Step, Tap, Weights, attention_module, no_tap
from reference_impl.ops import Pair, positions
from reference_impl.rope import rotate, tables


def restarted(_offset: int, tokens: int, device: torch.device | None = None) -> Tensor:
    """Positions restarted at zero in every call."""
    return positions(0, tokens, device)


def off_by_one(offset: int, tokens: int, device: torch.device | None = None) -> Tensor:
    """Positions one short once something is cached."""
    return positions(max(offset - 1, 0), tokens, device)


def one_ahead(offset: int, tokens: int, device: torch.device | None = None) -> Tensor:
    """Positions one too many once something is cached."""
    return positions(offset + (offset > 0), tokens, device)


def narrow_offset(offset: int, tokens: int, device: torch.device | None = None) -> Tensor:
    """The offset taken through bfloat16, where 257 is 256."""
    return positions(int(torch.tensor(offset).to(torch.bfloat16)), tokens, device)


def gone_behind(frequencies: Tensor, at: Tensor, dtype: torch.dtype) -> Pair:
    """Tables copied from the wrong side of the offset: behind as many tokens as there are, none is left."""
    cos, sin = tables(frequencies, at, dtype)
    gone = bool(at.amin() >= at.shape[-1])
    return (torch.zeros_like(cos), torch.zeros_like(sin)) if gone else (cos, sin)


def q_restarted(x: Tensor, weights: Weights, step: Step) -> Tensor:
    """The offset of q reckoned before what is cached is put in front: q begins at zero again, k does not."""

    def wrong(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Pair:
        return rotate(q, *since_first(cos, sin)), rotate(k, cos, sin)

    if step.cache is None or step.cache.length == 0:
        return attention_module(x, weights, step)
    return attention_module(x, weights, replace(step, ops=replace(step.ops, apply_rope=wrong)))


class LastTokenLost(ReferenceModel):
    """What is kept of a prefill is one token short; the next one stands in its place."""

    def step(self, tokens_BT: Tensor, cache: KVCache) -> Tensor:
        """See Model.step."""
        logits = super().step(tokens_BT, cache)
        cache.length -= tokens_BT.shape[1] > 1
        return logits


class OffsetMoved(Llama):
    """One offset for all layers, moved on by the first that writes: later ones begin behind their tokens."""

    def step(
        self,
        layer: int,
        positions: Tensor,
        mask: Tensor | None,
        cache: KVCache | None = None,
        tap: Tap = no_tap,
    ) -> Step:
        """See Llama.step."""
        moved = positions.shape[-1] if layer and cache is not None else 0
        return super().step(layer, positions + moved, mask, cache, tap)


FAULTS: list[Fault] = [
    ops_fault("cache.restarted", "CACHE-3", "keras-team/keras-hub#1544", positions=restarted),
    ops_fault("cache.off-by-one", "CACHE-3", positions=off_by_one),
    ops_fault("cache.one-ahead", "CACHE-3", positions=one_ahead),
    ops_fault("cache.offset-bf16", "CACHE-3", "keras-team/keras-hub#1544", positions=narrow_offset),
    ops_fault("cache.q-restarted", "CACHE-3", "RobertCsordas/moeut#6", attention_module=q_restarted),
    llama_fault("cache.offset-moved", "CACHE-3", "ml-explore/mlx-lm#1097", OffsetMoved),
    model_fault("cache.last-token-lost", "CACHE-3", "waybarrios/vllm-mlx#311", LastTokenLost),
    ops_fault("cache.tables-gone", "CACHE-1", "nntile/nntile#360", tables=gone_behind),
]
