"""Kernels that are right on short, contiguous, moderate input: tiles, strides, sums, overflow."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from conformance.faults.catalogue import Fault, ops_fault
from reference_impl import Ops
from reference_impl.attention import attention
from reference_impl.attention import softmax as right_softmax
from reference_impl.block import Step, Weights, mlp
from reference_impl.mlp import gated
from reference_impl.norm import rms_norm
from reference_impl.ops import Pair
from reference_impl.rope import rotate, tables

TILE = 32
BLOCK = 4096


def as_if_contiguous(x: Tensor) -> Tensor:
    """What a kernel reads that takes memory to be in the order of the axes."""
    strides = torch.empty(x.shape, device="meta").stride()
    held = x.untyped_storage().nbytes() // x.itemsize
    if x.is_contiguous() or x.storage_offset() + x.numel() > held:
        return x
    return x.as_strided(x.shape, strides)


def strides_ignored(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, ops: Ops) -> Tensor:
    """Keys and values read as if they were contiguous."""
    return attention(q, as_if_contiguous(k), as_if_contiguous(v), mask, scale, ops)


def last_tile_lost(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, ops: Ops) -> Tensor:
    """A single query does not see the keys behind the last whole tile."""
    keys = k.shape[-2]
    whole = keys // TILE * TILE
    if q.shape[-2] > 1 or whole in {0, keys}:
        return attention(q, k, v, mask, scale, ops)
    seen = None if mask is None else mask[..., :whole]
    return attention(q, k[:, :, :whole], v[:, :, :whole], seen, scale, ops)


def tail_of_one(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, ops: Ops) -> Tensor:
    """One past a tile, the last value of an expanded tensor is read from its first slot."""
    if v.shape[-2] % TILE == 1 and v.stride(0) == 0 and v.shape[0] > 1:
        v = torch.cat([v[:, :, :-1], v[:, :, :1]], dim=2)
    return attention(q, k, v, mask, scale, ops)


def later_rows_of_a_tile(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, ops: Ops
) -> Tensor:
    """Of whole tiles, each row of the batch but the first begins with the last query of the row before."""
    y = attention(q, k, v, mask, scale, ops)
    if q.shape[-2] % TILE == 0:
        y = y.clone()
        y[1:, :, 0] = y[:-1, :, -1]
    return y


def far_keys_lost(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, ops: Ops) -> Tensor:
    """Of more than 2048 keys the last 2048 alone are seen."""
    lost = k.shape[-2] - 2048
    if lost <= 0 or mask is None:
        return attention(q, k, v, mask, scale, ops)
    mask = mask.clone()
    mask[..., -1024:, :lost] = False
    return attention(q, k, v, mask, scale, ops)


def mean_in_16_bit(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, ops: Ops) -> Tensor:
    """The weighted mean of the values summed in 16-bit, tile by tile."""
    if q.dtype.itemsize > 2:
        return attention(q, k, v, mask, scale, ops)
    k, v = (ops.expand_kv(t, q.shape[1] // t.shape[1]) for t in (k, v))
    scores = (q.float() @ k.float().transpose(-2, -1) * scale).to(q.dtype)
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(q.dtype).min)
    weights, total = right_softmax(scores), torch.zeros_like(q[..., : v.shape[-1]])
    for keys in range(0, v.shape[-2], 4):
        total = total + weights[..., keys : keys + 4] @ v[..., keys : keys + 4, :]
    return total


def tail_unrotated(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Pair:
    """Of more tokens than a tile, those behind the last whole one are left as they are."""
    tokens = q.shape[-2]
    if tokens <= TILE:
        return rotate(q, cos, sin), rotate(k, cos, sin)
    whole = tokens // TILE * TILE
    rows = (torch.arange(tokens, device=q.device) < whole)[:, None]
    return torch.where(rows, rotate(q, cos, sin), q), torch.where(rows, rotate(k, cos, sin), k)


def positions_in_int16(frequencies: Tensor, positions: Tensor, dtype: torch.dtype) -> Pair:
    """Positions kept in 16 bits of a whole number, negative from 32768 on."""
    return tables(frequencies, positions.to(torch.int16), dtype)


def norm_of_a_block(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Of a row, what one block of threads holds; beyond it nothing is written."""
    y = rms_norm(x[..., :BLOCK], weight[:BLOCK], eps)
    return functional.pad(y, (0, x.shape[-1] - y.shape[-1]))


def gate_of_a_block(gate: Tensor, up: Tensor, kind: str, ops: Ops) -> Tensor:
    """Of a row, what one block of threads holds; beyond it nothing is written."""
    y = gated(gate[..., :BLOCK], up[..., :BLOCK], kind, ops)
    return functional.pad(y, (0, gate.shape[-1] - y.shape[-1]))


def product_first(gate: Tensor, up: Tensor, kind: str, ops: Ops) -> Tensor:
    """gate · up · sigmoid(gate): far below zero the product overflows float16, and SiLU is nothing there."""
    if kind != "silu":
        return gated(gate, up, kind, ops)
    return gate * up * torch.sigmoid(gate)


def rotation_of_contiguous(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Pair:
    """q and k read as if they were contiguous."""
    return rotate(as_if_contiguous(q), cos, sin), rotate(as_if_contiguous(k), cos, sin)


def norm_of_contiguous(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Rows read as if they were contiguous."""
    return rms_norm(as_if_contiguous(x), weight, eps)


def gate_of_contiguous(gate: Tensor, up: Tensor, kind: str, ops: Ops) -> Tensor:
    """Halves of a fused projection read as if each were contiguous."""
    return gated(as_if_contiguous(gate), as_if_contiguous(up), kind, ops)


def overflow_hidden(gate: Tensor, up: Tensor, kind: str, ops: Ops) -> Tensor:
    """A product clamped far below where the dtype ends, so that nothing is ever infinite."""
    return gated(gate, up, kind, ops).clamp(-3e4, 3e4)


def saturated(gate: Tensor, up: Tensor, kind: str, ops: Ops) -> Tensor:
    """A product clamped to the largest number of the dtype: what overflowed looks like a result."""
    most = torch.finfo(gate.dtype).max
    return gated(gate, up, kind, ops).clamp(-most, most)


def squared_on_the_way(gate: Tensor, up: Tensor, kind: str, ops: Ops) -> Tensor:
    """act as gate² · sigmoid(gate) / gate: what is squared overflows float16 where the product does not."""
    if kind != "silu":
        return gated(gate, up, kind, ops)
    return gate * gate * torch.sigmoid(gate) / torch.where(gate == 0, 1, gate) * up


def cast_before_the_product(x: Tensor, weights: Weights, step: Step) -> Tensor:
    """From 64 tokens on activations go through float16 in front of the down projection."""

    def narrow(gate: Tensor, up: Tensor, kind: str, ops: Ops) -> Tensor:
        y = gated(gate, up, kind, ops)
        return y.to(torch.float16).to(y.dtype) if y.shape[-2] >= 64 else y

    return mlp(x, weights, replace(step, ops=replace(step.ops, gated=narrow)))


def sum_in_16_bit(x: Tensor, weights: Weights, step: Step) -> Tensor:
    """The down projection summed in the dtype of its input, a few products at a time."""
    weight = weights["mlp.down_proj.weight"]
    if x.dtype.itemsize > 2 or "mlp.down_proj.bias" in weights:
        return mlp(x, weights, step)
    gate, up = (x @ weights[f"mlp.{name}_proj.weight"].T for name in ("gate", "up"))
    y = step.ops.gated(gate, up, step.config.hidden_act, step.ops)
    total = torch.zeros_like(x)
    for part, columns in zip(torch.split(y, 8, dim=-1), torch.split(weight, 8, dim=-1), strict=True):
        total = total + part @ columns.T
    return total


FAULTS: list[Fault] = [
    ops_fault("attention.last-tile-lost", "ATTN-10", "pytorch/pytorch#169222", attention=last_tile_lost),
    ops_fault("attention.tail-of-one", "ATTN-10", "pytorch/pytorch#191937", attention=tail_of_one),
    ops_fault("attention.strides-ignored", "ATTN-10", "pytorch/pytorch#112577", attention=strides_ignored),
    ops_fault("attention.rows-of-a-tile", "ATTN-10", "classical", attention=later_rows_of_a_tile),
    ops_fault("attention.far-keys-lost", "ATTN-10", "classical", attention=far_keys_lost),
    ops_fault("attention.mean-16-bit", "ATTN-3", "classical", attention=mean_in_16_bit),
    ops_fault("rope.strides-ignored", "ROPE-3", "classical", apply_rope=rotation_of_contiguous),
    ops_fault("rope.tail-unrotated", "ROPE-3", "classical", apply_rope=tail_unrotated),
    ops_fault("rope.positions-int16", "ROPE-2", "classical", tables=positions_in_int16),
    ops_fault("norm.block-of-4096", "NORM-1", "classical", rms_norm=norm_of_a_block),
    ops_fault("mlp.block-of-4096", "MLP-2", "classical", gated=gate_of_a_block),
    ops_fault("mlp.product-first", "MLP-4", "classical", gated=product_first),
    ops_fault("norm.strides-ignored", "NORM-1", "classical", rms_norm=norm_of_contiguous),
    ops_fault("mlp.strides-ignored", "MLP-2", "classical", gated=gate_of_contiguous),
    ops_fault("mlp.overflow-hidden", "MLP-4", "classical", gated=overflow_hidden),
    ops_fault("mlp.saturated", "MLP-4", "classical", gated=saturated),
    ops_fault("mlp.squared-on-the-way", "MLP-4", "huggingface/transformers#27179", gated=squared_on_the_way),
    ops_fault("mlp.cast-to-float16", "MLP-4", "ggml-org/llama.cpp#27016", mlp=cast_before_the_product),
    ops_fault("mlp.sum-16-bit", "MLP-2", "classical", mlp=sum_in_16_bit),
]
