"""Rotation that is right on its own and wrong in a model: layouts, position ids, casts, memory, parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from conformance.faults.catalogue import Fault, fresh_fault, llama_fault, model_fault, op_fault, ops_fault
from conformance.implementations.base import Model
from conformance.implementations.reference import Reference, ReferenceModel
from reference_impl import KVCache, Llama, LlamaConfig, Ops, Rope
from reference_impl.attention import causal_mask
from reference_impl.block import Step, Tap, no_tap
from reference_impl.ops import apply_rope, apply_rope_adjacent
from reference_impl.rope import inv_freq, rotate, tables, to_adjacent, to_half_split

Pair = tuple[Tensor, Tensor]
ADJACENT = Reference(replace(Ops(), apply_rope=apply_rope_adjacent))


def built_adjacent(change: Callable[[LlamaConfig, str, Tensor], Tensor]) -> Callable[..., Model]:
    """Adjacent pairs on rows that are put into another order first."""

    def build(config: LlamaConfig, weights: Mapping[str, Tensor]) -> Model:
        return ADJACENT.build(config, {n: change(config, n, w) for n, w in weights.items()})

    return build


def k_by_query_heads(config: LlamaConfig, name: str, weight: Tensor) -> Tensor:
    """k brought to half-split order by its heads and back by those of q."""
    if "k_proj" not in name:
        return weight
    return to_adjacent(to_half_split(weight, config.num_key_value_heads), config.num_attention_heads)


def half_split_rows(config: LlamaConfig, name: str, weight: Tensor) -> Tensor:
    """Rows put into the order of the other layout."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    found = [count for part, count in heads.items() if part in name]
    return to_half_split(weight, found[0]) if found else weight


def v_too(config: LlamaConfig, name: str, weight: Tensor) -> Tensor:
    """v permuted like k."""
    return to_adjacent(weight, config.num_key_value_heads) if "v_proj" in name else weight


def q_alone(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Pair:
    """Adjacent pairs in q, half-split ones in k."""
    return apply_rope_adjacent(q, k, cos, sin)[0], rotate(k, cos, sin)


def in_order(frequencies: Tensor, positions: Tensor, dtype: torch.dtype) -> Pair:
    """Position ids taken for their number: the first one, and on from there."""
    return tables(frequencies, positions[..., :1] + torch.arange(positions.shape[-1]), dtype)


def of_row_0(frequencies: Tensor, positions: Tensor, dtype: torch.dtype) -> Pair:
    """The position ids of the first row for all."""
    return tables(frequencies, positions[:1] if positions.ndim == 2 else positions, dtype)


class IdsAsDocuments(ReferenceModel):
    """Where position ids do not go on by one, a document is taken to begin that sees none before it."""

    def logits(
        self, tokens_BT: Tensor, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """See Model.logits."""
        if positions is None or mask is not None:
            return super().logits(tokens_BT, positions, mask)
        begins = positions.diff(dim=-1, prepend=positions[..., :1]) != 1
        document = begins.cumsum(dim=-1)
        same = document[..., :, None] == document[..., None, :]
        mask = causal_mask(*same.shape[-2:]) & (same[:, None] if same.ndim == 3 else same)
        return self.llama(tokens_BT, positions=positions, mask=mask)


class TableOfC0(Llama):
    """A table as long as the original context, its last row used beyond."""

    def step(
        self,
        layer: int,
        positions: Tensor,
        mask: Tensor | None,
        cache: KVCache | None = None,
        tap: Tap = no_tap,
    ) -> Step:
        """See Llama.step."""
        rows = self.config.rope.original_max_position_embeddings
        return super().step(layer, positions.clamp(max=rows - 1) if rows else positions, mask, cache, tap)


def rounded(frequencies: Tensor, positions: Tensor, dtype: torch.dtype) -> Pair:
    """Frequencies in the dtype of the model."""
    return tables(frequencies.to(dtype).to(frequencies.dtype), positions, dtype)


def angles_rounded(frequencies: Tensor, positions: Tensor, dtype: torch.dtype) -> Pair:
    """Angles in the dtype of the model."""
    angle = (positions.to(dtype)[..., None] * frequencies.to(dtype)).to(frequencies.dtype)
    return angle.cos().to(dtype), angle.sin().to(dtype)


class RoundedByACast(ReferenceModel):
    """Frequencies in a buffer that .to(dtype) casts along."""

    def cast(self, dtype: torch.dtype) -> Model:
        """See Model.cast."""
        model = super().cast(dtype)
        assert isinstance(model, ReferenceModel)
        model.llama.inv_freq = model.llama.inv_freq.to(dtype).float()
        return model


def kept_by_length() -> dict[str, Any]:
    """Tables kept by their length, whatever they are tables of."""
    kept: dict[tuple[int, ...], Pair] = {}

    def wrong(frequencies: Tensor, positions: Tensor, dtype: torch.dtype) -> Pair:
        key = (*positions.shape, len(frequencies), dtype.itemsize)
        return kept.setdefault(key, tables(frequencies, positions, dtype))

    return {"tables": wrong}


def base_enlarged() -> dict[str, Any]:
    """Frequencies slowed down by the longest sequence so far, and never again restored."""
    longest = [0]

    def wrong(frequencies: Tensor, positions: Tensor, dtype: torch.dtype) -> Pair:
        longest[0] = max(longest[0], int(positions.max()))
        return tables(frequencies / max(1.0, longest[0] / 32), positions, dtype)

    return {"tables": wrong}


def whole(rope: Rope, head_dim: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """The whole head rotated, whatever part the config gives."""
    return inv_freq(replace(rope, partial_rotary_factor=1.0), head_dim, dtype)


def frequencies_of_the_head(rope: Rope, head_dim: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """The first frequencies of the whole head for its part."""
    return whole(rope, head_dim, dtype)[: rope.rotary_dim(head_dim) // 2]


def last_part(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Pair:
    """The last part of the head rotated instead of the first."""
    rotary = 2 * cos.shape[-1]
    q_rot, k_rot = apply_rope(q[..., -rotary:], k[..., -rotary:], cos, sin)
    return torch.cat([q[..., :-rotary], q_rot], dim=-1), torch.cat([k[..., :-rotary], k_rot], dim=-1)


def layout(name: str, source: str, change: Callable[[LlamaConfig, str, Tensor], Tensor]) -> Fault:
    """A fault in the rows that a model of adjacent pairs is given."""
    return op_fault(name, "ROPE-4", source, build_adjacent=built_adjacent(change))


FAULTS: list[Fault] = [
    layout("rope.k-by-query-heads", "huggingface/transformers#31788", k_by_query_heads),
    layout("rope.permuted-twice", "OpenNMT/CTranslate2#1127", half_split_rows),
    layout("rope.v-permuted", "classical", v_too),
    op_fault(
        "rope.layout-ignored", "ROPE-4", "rasbt/LLMs-from-scratch#747", build_adjacent=Reference().build
    ),
    op_fault("rope.adjacent-in-q-alone", "ROPE-4", "classical", apply_rope_adjacent=q_alone),
    ops_fault("rope.ids-ignored", "ROPE-9", "NVIDIA-NeMo/Automodel#2377", tables=in_order),
    ops_fault("rope.ids-of-row-0", "ROPE-9", "microsoft/onnxruntime#29618", tables=of_row_0),
    model_fault("rope.ids-as-documents", "ROPE-9", "huggingface/transformers#39814", IdsAsDocuments),
    llama_fault("rope.table-ends-at-c0", "LOGITS-1", "gty111/gLLM#269", TableOfC0),
    ops_fault("rope.frequencies-rounded", "ROPE-10", "InternLM/InternLM#237", tables=rounded),
    ops_fault("rope.angles-rounded", "ROPE-10", "huggingface/transformers#29285", tables=angles_rounded),
    model_fault("rope.rounded-by-a-cast", "ROPE-10", "huggingface/transformers#25681", RoundedByACast),
    fresh_fault("rope.kept-by-length", "ROPE-11", "lucidrains/rotary-embedding-torch#11", kept_by_length),
    fresh_fault("rope.base-not-restored", "ROPE-11", "huggingface/transformers#25306", base_enlarged),
    ops_fault("rope.part-ignored", "ROPE-13", "ggml-org/llama.cpp#4889", inv_freq=whole),
    ops_fault("rope.part-frequencies", "ROPE-13", inv_freq=frequencies_of_the_head),
    ops_fault("rope.last-part", "ROPE-13", apply_rope=last_part),
]
