"""Wrong frequencies, tables and rotations."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from conformance.faults.catalogue import Fault, ops_fault
from reference_impl import Ops, Rope
from reference_impl.block import Step, Weights, attention_module
from reference_impl.ops import apply_rope, apply_rope_adjacent
from reference_impl.rope import inv_freq, rotate, tables

Pair = tuple[Tensor, Tensor]


def of_rope(change: Callable[[Rope], Rope]) -> Callable[..., Tensor]:
    """Frequencies of another rule than the config's."""
    return lambda rope, head_dim, dtype=torch.float32: inv_freq(change(rope), head_dim, dtype)


def plain(rope: Rope) -> Rope:
    """The rule without its scaling."""
    return Rope(rope_theta=rope.rope_theta)


def only_llama3(**fields: Any) -> Callable[..., Tensor]:
    """llama3 constants hard-wired."""
    return of_rope(lambda rope: replace(rope, **fields) if rope.rope_type == "llama3" else rope)


def hard_switch(rope: Rope, head_dim: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """No smooth band: kept above the long edge, divided below it."""
    if rope.rope_type != "llama3":
        return inv_freq(rope, head_dim, dtype)
    assert rope.factor
    assert rope.low_freq_factor
    assert rope.original_max_position_embeddings
    frequencies = inv_freq(plain(rope), head_dim, dtype)
    turns = rope.original_max_position_embeddings * frequencies / (2 * math.pi)
    return torch.where(turns < rope.low_freq_factor, frequencies / rope.factor, frequencies)


def all_divided(rope: Rope, head_dim: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """llama3 taken for linear."""
    scaled = inv_freq(plain(rope), head_dim, dtype)
    return scaled / rope.factor if rope.factor else scaled


def band_reversed(rope: Rope, head_dim: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Fast pairs divided and slow ones kept."""
    if rope.rope_type != "llama3":
        return inv_freq(rope, head_dim, dtype)
    kept = inv_freq(plain(rope), head_dim, dtype)
    assert rope.factor
    return kept + kept / rope.factor - inv_freq(rope, head_dim, dtype)


def scaled_twice(rope: Rope, head_dim: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """The scaling applied again to what is scaled already."""
    scaled = inv_freq(rope, head_dim, dtype)
    return scaled if rope.rope_type == "default" else scaled * scaled / inv_freq(plain(rope), head_dim, dtype)


def narrow(rope: Rope, head_dim: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Frequencies rounded to bfloat16, as a cast of the whole model does."""
    return inv_freq(rope, head_dim, dtype).to(torch.bfloat16).to(dtype)


def wrong_exponent(rope: Rope, head_dim: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """The exponent i/d instead of 2i/d."""
    return inv_freq(rope, head_dim, dtype).sqrt()


def narrow_positions(frequencies: Tensor, positions: Tensor, dtype: torch.dtype) -> Pair:
    """Positions in bfloat16, whole numbers only up to 256."""
    return tables(frequencies, positions.to(torch.bfloat16), dtype)


def row_late(frequencies: Tensor, positions: Tensor, dtype: torch.dtype) -> Pair:
    """The table one row late."""
    return tables(frequencies, positions + 1, dtype)


def modulo(frequencies: Tensor, positions: Tensor, dtype: torch.dtype) -> Pair:
    """A table of 2048 rows, begun again beyond."""
    return tables(frequencies, positions % 2048, dtype)


def swapped_tables(frequencies: Tensor, positions: Tensor, dtype: torch.dtype) -> Pair:
    """cos and sin exchanged."""
    cos, sin = tables(frequencies, positions, dtype)
    return sin, cos


def backwards(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Pair:
    """Turned the other way: lengths and distances survive it."""
    return apply_rope(q, k, cos, -sin)


def k_unrotated(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Pair:
    """k left alone."""
    return rotate(q, cos, sin), k


def q_unrotated(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Pair:
    """q left alone."""
    return q, rotate(k, cos, sin)


def first_k_head(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Pair:
    """Of k only the first head rotated."""
    return rotate(q, cos, sin), torch.cat([rotate(k[:, :1], cos, sin), k[:, 1:]], dim=1)


def lone_k_head(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Pair:
    """k left alone where it has one head."""
    return rotate(q, cos, sin), k if k.shape[1] == 1 else rotate(k, cos, sin)


def since_first(cos: Tensor, sin: Tensor) -> Pair:
    """The angles since the first row: positions restarted at zero."""
    first_cos, first_sin = cos[..., :1, :], sin[..., :1, :]
    return cos * first_cos + sin * first_sin, sin * first_cos - cos * first_sin


def restarted_k(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Pair:
    """The positions of k restarted at zero."""
    return rotate(q, cos, sin), rotate(k, *since_first(cos, sin))


def late_k(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Pair:
    """The positions of k one too small once there is an offset: turned back by the angle of one step."""
    if cos.shape[-2] < 2 or bool((cos[..., 0, :] == 1).all()):
        return apply_rope(q, k, cos, sin)
    (c0, c1), (s0, s1) = (torch.split(t[..., :2, :], 1, dim=-2) for t in (cos, sin))
    step_cos, step_sin = c1 * c0 + s1 * s0, s1 * c0 - c1 * s0
    return rotate(q, cos, sin), rotate(k, cos * step_cos + sin * step_sin, sin * step_cos - cos * step_sin)


def stretched(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Pair:
    """Rotation that also lengthens, as a table multiplied by a factor does."""
    return apply_rope(q, k, cos * 1.02, sin * 1.02)


def first_row_of_a_step(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Pair:
    """Single tokens read without the stride of the batch: every row of it is the first."""
    if q.shape[-2] == 1:
        q, k = q[:1].expand_as(q), k[:1].expand_as(k)
    return apply_rope(q, k, cos, sin)


def halves_mixed(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Pair:
    """The second half of k read from q."""
    half = k.shape[-1] // 2
    mixed = torch.cat([k[..., :half], q[:, : k.shape[1], :, half:]], dim=-1)
    return rotate(q, cos, sin), rotate(mixed, cos, sin)


def v_turned(x: Tensor, weights: Weights, step: Step) -> Tensor:
    """The v of the tokens at hand rotated like their k."""

    def wrong(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, ops: Ops) -> Tensor:
        past = v.shape[2] - q.shape[2]
        turned = torch.cat([v[:, :, :past], rotate(v[:, :, past:], step.cos, step.sin)], dim=2)
        return step.ops.attention(q, k, turned, mask, scale, ops)

    return attention_module(x, weights, replace(step, ops=replace(step.ops, attention=wrong)))


def minus_lost(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Pair:
    """rotate_half without its minus."""

    def turn(x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos + b * sin, b * cos + a * sin), dim=-1).to(x.dtype)

    return turn(q), turn(k)


FAULTS: list[Fault] = [
    ops_fault("rope.interleaved", "ROPE-3", "NeuraLegion/shainet#111", apply_rope=apply_rope_adjacent),
    ops_fault("rope.backwards", "ROPE-3", apply_rope=backwards),
    ops_fault("rope.minus-lost", "ROPE-5", apply_rope=minus_lost),
    ops_fault("rope.stretched", "ROPE-5", apply_rope=stretched),
    ops_fault("rope.k-unrotated", "ROPE-8", apply_rope=k_unrotated),
    ops_fault("rope.q-unrotated", "ROPE-8", apply_rope=q_unrotated),
    ops_fault("rope.first-k-head", "ROPE-8", apply_rope=first_k_head),
    ops_fault("rope.lone-k-head", "ROPE-8", "linkedin/Liger-Kernel#342", apply_rope=lone_k_head),
    ops_fault("rope.halves-mixed", "ROPE-8", "hpcaitech/ColossalAI#6428", apply_rope=halves_mixed),
    ops_fault("rope.v-turned", "ROPE-8", attention_module=v_turned),
    ops_fault("rope.first-row-of-a-step", "ROPE-3", "ml-explore/mlx#3494", apply_rope=first_row_of_a_step),
    ops_fault("rope.k-restarted", "ROPE-6", apply_rope=restarted_k),
    ops_fault("rope.k-off-by-one", "ROPE-6", apply_rope=late_k),
    ops_fault(
        "rope.theta-10000",
        "ROPE-1",
        "karpathy/llama2.c#356",
        inv_freq=of_rope(lambda r: replace(r, rope_theta=1e4)),
    ),
    ops_fault("rope.theta-500000", "ROPE-1", inv_freq=of_rope(lambda r: replace(r, rope_theta=5e5))),
    ops_fault("rope.wrong-exponent", "ROPE-1", inv_freq=wrong_exponent),
    ops_fault("rope.inv-freq-bf16", "ROPE-1", "huggingface/transformers#25681", inv_freq=narrow),
    ops_fault("rope.positions-bf16", "ROPE-2", "huggingface/transformers#29285", tables=narrow_positions),
    ops_fault("rope.row-late", "ROPE-7", tables=row_late),
    ops_fault("rope.table-2048", "ROPE-2", "mlc-ai/mlc-llm#780", tables=modulo),
    ops_fault("rope.cos-sin-swapped", "ROPE-2", tables=swapped_tables),
    ops_fault("scale.dropped", "SCALE-3", "Lightning-AI/litgpt#1699", inv_freq=of_rope(plain)),
    ops_fault(
        "scale.linear-dropped",
        "SCALE-1",
        "Blaizzy/mlx-vlm#1710",
        inv_freq=of_rope(lambda r: plain(r) if r.rope_type == "linear" else r),
    ),
    ops_fault("scale.hard-switch", "SCALE-3", "ml-explore/mlx-examples#945", inv_freq=hard_switch),
    ops_fault("scale.all-divided", "SCALE-3", inv_freq=all_divided),
    ops_fault("scale.band-reversed", "SCALE-3", inv_freq=band_reversed),
    ops_fault("scale.twice", "SCALE-1", inv_freq=scaled_twice),
    ops_fault(
        "scale.factor-8",
        "SCALE-4",
        "TransformerLensOrg/TransformerLens#910",
        inv_freq=only_llama3(factor=8.0),
    ),
    ops_fault("scale.factor-32", "SCALE-4", inv_freq=only_llama3(factor=32.0)),
    ops_fault("scale.low-ignored", "SCALE-3", inv_freq=only_llama3(low_freq_factor=2.0)),
    ops_fault("scale.high-ignored", "SCALE-3", inv_freq=only_llama3(high_freq_factor=32.0)),
    ops_fault(
        "scale.context-ignored", "SCALE-3", inv_freq=only_llama3(original_max_position_embeddings=4096)
    ),
]
