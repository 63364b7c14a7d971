"""Wrong masks: causal ones, windows, and what is made of a mask."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from conformance.faults.catalogue import Fault, llama_fault, op_fault, ops_fault
from reference_impl import KVCache, Llama, Ops
from reference_impl.attention import attention, causal_mask, hide_padding, in_window
from reference_impl.block import Step, Tap, no_tap


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


def in_pairs(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, ops: Ops) -> Tensor:
    """Rows computed two by two; the odd one of more sees everything."""
    y = attention(q, k, v, mask, scale, ops)
    if len(q) > 1 and len(q) % 2:
        y[-1:] = attention(q[-1:], k[-1:], v[-1:], None, scale, ops)
    return y


def two_at_once(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, ops: Ops) -> Tensor:
    """A path of its own for batches of two, which takes no mask."""
    return attention(q, k, v, None if len(q) == 2 else mask, scale, ops)


# Windows.


def wider(by: int) -> object:
    """A window of some keys more, or fewer; itself is always seen."""

    def wrong(queries: int, keys: int, window: int, device: torch.device | None = None) -> Tensor:
        return in_window(queries, keys, max(window + by, 1), device)

    return wrong


def no_window(queries: int, keys: int, _window: int, device: torch.device | None = None) -> Tensor:
    """The window ignored."""
    return all_seen(queries, keys, device)


def either_side(queries: int, keys: int, window: int, device: torch.device | None = None) -> Tensor:
    """The window around the token, half of it ahead, where the causal mask hides it."""
    return in_window(queries, keys, window // 2 + 1, device)


def in_blocks(queries: int, keys: int, window: int, device: torch.device | None = None) -> Tensor:
    """Blocks as wide as the window, which do not see one another."""
    s = torch.arange(keys, device=device) // window
    return s[keys - queries :, None] == s


def cut_to_the_window(mask: Tensor, real: Tensor) -> Tensor:
    """Of the padding mask only the last window is kept, and laid over the first keys."""
    window = int(mask.sum(dim=-1).max())
    kept = torch.ones_like(real)
    kept[:, :window] = real[:, -window:]
    return hide_padding(mask, kept)


class EverySecondLayer(Llama):
    """A window on the layers 0, 2, 4, … alone."""

    def step(
        self,
        layer: int,
        positions: Tensor,
        mask: Tensor | None,
        cache: KVCache | None = None,
        tap: Tap = no_tap,
    ) -> Step:
        """See Llama.step."""
        if layer % 2 and mask is not None and mask.ndim == 2:
            mask = self.ops.mask(*mask.shape, mask.device)
        return super().step(layer, positions, mask, cache, tap)


# What is made of a mask.


def weighing(weigh: Callable[[Tensor, Tensor, Ops], Tensor]) -> object:
    """Attention whose weights are made of scores and mask [..., T, S] in a way of its own."""

    def wrong(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, ops: Ops) -> Tensor:
        group_size = q.shape[1] // k.shape[1]
        scores = q @ ops.expand_kv(k, group_size).transpose(-2, -1) * scale
        weights = ops.softmax(scores) if mask is None else weigh(scores, mask, ops)
        return weights @ ops.expand_kv(v, group_size)

    return wrong


def filled(constant: float) -> object:
    """Hidden scores replaced by a finite number."""

    def weigh(scores: Tensor, mask: Tensor, ops: Ops) -> Tensor:
        lowest = torch.finfo(scores.dtype).min
        return ops.softmax(scores.masked_fill(~mask, max(constant, lowest)))

    return weighing(weigh)


def added(constant: float) -> object:
    """A finite number added to hidden scores."""
    return weighing(lambda scores, mask, ops: ops.softmax(scores + constant * (~mask).to(scores.dtype)))


def times_scores(scores: Tensor, mask: Tensor, ops: Ops) -> Tensor:
    """Hidden scores are zero."""
    return ops.softmax(scores * mask)


def times_weights(scores: Tensor, mask: Tensor, ops: Ops) -> Tensor:
    """Hidden weights are zero, and the others not normalised anew."""
    return ops.softmax(scores) * mask


def plus_scores(scores: Tensor, mask: Tensor, ops: Ops) -> Tensor:
    """A boolean mask added to the scores: what is seen has one more."""
    return ops.softmax(scores + mask)


def infinite(scores: Tensor, mask: Tensor, ops: Ops) -> Tensor:
    """Minus infinity all along a row that sees nothing makes NaN of it."""
    return ops.softmax(scores.masked_fill(~mask, -torch.inf))


def nan_cleared(scores: Tensor, mask: Tensor, ops: Ops) -> Tensor:
    """Where a row of the batch has a NaN, all of it is cleared."""
    weights = infinite(scores, mask, ops)
    return weights.masked_fill(weights.isnan().flatten(1).any(1)[:, None, None, None], 0)


def keys_times_zero(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, ops: Ops) -> Tensor:
    """Keys and values that no query sees are multiplied by zero, and take part."""
    if mask is not None:
        hidden = ~mask.any(dim=-2, keepdim=True)
        kept = (~hidden[..., 0, :, None]).expand(*[-1] * (mask.ndim - 2), k.shape[-2], 1)
        k, v, mask = k * kept, v * kept, mask | hidden
    return attention(q, k, v, mask, scale, ops)


def mask_of_row_0(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, ops: Ops) -> Tensor:
    """The mask of the first row for all."""
    return attention(q, k, v, mask[:1] if mask is not None and mask.ndim == 4 else mask, scale, ops)


def taken_for_boolean(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """An additive mask taken for a boolean one: 0 is False."""
    return attention(q, k, v, mask.bool(), scale, Ops())


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
    ops_fault("mask.odd-row", "LOGITS-3", attention=in_pairs),
    ops_fault("mask.batch-of-2", "LOGITS-3", attention=two_at_once),
    ops_fault("mask.window-one-more", "MASK-7", window=wider(1)),
    ops_fault("mask.window-one-less", "MASK-7", window=wider(-1)),
    ops_fault("mask.window-ignored", "MASK-7", window=no_window),
    ops_fault("mask.window-either-side", "MASK-7", window=either_side),
    ops_fault("mask.window-blocks", "MASK-7", window=in_blocks),
    ops_fault("mask.window-cut", "MASK-7", "huggingface/transformers#34093", hide_padding=cut_to_the_window),
    llama_fault("mask.window-every-second", "MASK-7", "classical", EverySecondLayer),
    ops_fault("mask.constant", "MASK-9", "TransformerLensOrg/TransformerLens#385", attention=filled(-1e5)),
    ops_fault("mask.constant-added", "MASK-9", attention=added(-1e4)),
    ops_fault("mask.constant-small", "MASK-5", attention=added(-20.0)),
    ops_fault("mask.times-scores", "MASK-1", attention=weighing(times_scores)),
    ops_fault("mask.times-weights", "MASK-1", attention=weighing(times_weights)),
    ops_fault("mask.boolean-added", "MASK-9", attention=weighing(plus_scores)),
    ops_fault("mask.nan-rows", "MASK-4", "pytorch/pytorch#103749", attention=weighing(infinite)),
    ops_fault("mask.nan-cleared", "MASK-4", "unslothai/unsloth#9848", attention=weighing(nan_cleared)),
    ops_fault("mask.keys-times-zero", "MASK-5", attention=keys_times_zero),
    ops_fault("mask.of-row-0", "MASK-9", attention=mask_of_row_0),
    op_fault(
        "mask.additive-as-boolean",
        "MASK-9",
        "nishide-dev/unturtle#56",
        additive_attention_core=taken_for_boolean,
    ),
]
