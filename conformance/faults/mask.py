"""Wrong masks."""

from __future__ import annotations

import torch
from torch import Tensor

from conformance.faults.catalogue import Fault, ops_fault
from reference_impl import Ops
from reference_impl.attention import attention, causal_mask


def behind_64(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, ops: Ops) -> Tensor:
    """Behind 64 keys and more, every row of a chunk sees what its last one does."""
    if mask is not None and k.shape[-2] - q.shape[-2] >= 64:
        mask = mask[..., -1:, :]
    return attention(q, k, v, mask, scale, ops)


def shifted_mask(by: int) -> object:
    """A mask off by some keys; at least the first is always seen."""

    def wrong(queries: int, keys: int, device: torch.device | None = None) -> Tensor:
        mask = causal_mask(queries, keys, device).roll(by, dims=1)
        if by > 0:
            mask[:, :by] = True
        else:
            mask[:, by:] = False
            mask[:, 0] = True
        return mask

    return wrong


def top_left(queries: int, keys: int, device: torch.device | None = None) -> Tensor:
    """Aligned top-left: with a cache the last query does not see the last keys."""
    return causal_mask(keys, keys, device)[:queries]


def none_behind(queries: int, keys: int, device: torch.device | None = None) -> Tensor:
    """No mask where there is a cache, as if a step had one token."""
    return causal_mask(queries, keys, device) if queries == keys else all_seen(queries, keys, device)


def all_seen(queries: int, keys: int, device: torch.device | None = None) -> Tensor:
    """No mask."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device)


def distances(queries: int, keys: int, device: torch.device | None = None) -> Tensor:
    """How far behind each query each key stands [T, S]; negative for what is ahead."""
    t = torch.arange(queries, device=device)[:, None] + keys - queries
    return t - torch.arange(keys, device=device)


def every_second(queries: int, keys: int, device: torch.device | None = None) -> Tensor:
    """Every second key alone, counted back from the query."""
    distance = distances(queries, keys, device)
    return (distance >= 0) & (distance % 2 == 0)


def window(queries: int, keys: int, device: torch.device | None = None) -> Tensor:
    """The last 16 keys alone, where no window is configured."""
    distance = distances(queries, keys, device)
    return (distance >= 0) & (distance < 16)


def leak_in_16_bit(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, ops: Ops) -> Tensor:
    """The future seen where the dtype is 16-bit."""
    return attention(q, k, v, mask if q.dtype == torch.float32 else None, scale, ops)


FAULTS: list[Fault] = [
    ops_fault("mask.none", "MASK-1", mask=all_seen),
    ops_fault("mask.one-ahead", "MASK-1", mask=shifted_mask(1)),
    ops_fault("mask.one-short", "LOGITS-1", mask=shifted_mask(-1)),
    ops_fault("mask.top-left", "MASK-2", "meta-llama/llama#899", mask=top_left),
    ops_fault("mask.none-behind-a-cache", "MASK-2", "huggingface/candle#3743", mask=none_behind),
    ops_fault("mask.behind-64", "MASK-2", "tenstorrent/tt-metal#48899", attention=behind_64),
    ops_fault("mask.every-second", "LOGITS-1", mask=every_second),
    ops_fault("mask.window", "LOGITS-1", mask=window),
    ops_fault("mask.leak-16-bit", "MASK-1", attention=leak_in_16_bit),
]
