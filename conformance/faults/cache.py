"""Wrong caches and offsets."""

from __future__ import annotations

import torch
from torch import Tensor

from conformance.faults.catalogue import Fault, ops_fault
from reference_impl.block import Step, Weights, attention_module
from reference_impl.ops import positions


def restarted(_offset: int, tokens: int, device: torch.device | None = None) -> Tensor:
    """Positions restarted at zero in every call."""
    return positions(0, tokens, device)


def off_by_one(offset: int, tokens: int, device: torch.device | None = None) -> Tensor:
    """Positions one short once something is cached."""
    return positions(max(offset - 1, 0), tokens, device)


def one_ahead(offset: int, tokens: int, device: torch.device | None = None) -> Tensor:
    """Positions one too many once something is cached."""
    return positions(offset + (offset > 0), tokens, device)


def stale(x: Tensor, weights: Weights, step: Step) -> Tensor:
    """Single tokens see only what was cached before them last time: their own key is not there yet."""
    if step.cache is None or step.cache.length == 0 or x.shape[1] > 1 or step.mask is None:
        return attention_module(x, weights, step)
    mask = step.mask.clone()
    mask[..., -1] = False
    return attention_module(x, weights, _with_mask(step, mask))


def rotated_again(x: Tensor, weights: Weights, step: Step) -> Tensor:
    """Cached keys rotated once more in every call."""
    if step.cache is not None and step.cache.length:
        old = step.cache.k[step.layer, :, :, : step.cache.length]
        cos, sin = step.cos[..., :1, :], step.sin[..., :1, :]
        old.copy_(step.ops.apply_rope(old, old, cos, sin)[1])
    return attention_module(x, weights, step)


def first_layer(x: Tensor, weights: Weights, step: Step) -> Tensor:
    """Every layer reads and writes the keys of the first."""
    return attention_module(x, weights, _with_layer(step, 0) if step.cache is not None else step)


def _with_mask(step: Step, mask: Tensor) -> Step:
    return Step(**{**vars(step), "mask": mask})


def _with_layer(step: Step, layer: int) -> Step:
    return Step(**{**vars(step), "layer": layer})


FAULTS: list[Fault] = [
    ops_fault("cache.restarted", "CACHE-3", "keras-team/keras-hub#1544", positions=restarted),
    ops_fault("cache.off-by-one", "CACHE-3", "waybarrios/vllm-mlx#311", positions=off_by_one),
    ops_fault("cache.one-ahead", "CACHE-3", positions=one_ahead),
    ops_fault("cache.own-key-missing", "CACHE-1", "kvcache-ai/sglang#66", attention_module=stale),
    ops_fault("cache.rotated-again", "CACHE-1", "NeuraLegion/shainet#110", attention_module=rotated_again),
    ops_fault("cache.one-layer", "CACHE-1", attention_module=first_layer),
]
