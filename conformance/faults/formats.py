"""Weights mapped wrongly on their way in from another format, and on their way out.

Every fault is a change of canonical weights: what a wrong map makes of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from conformance.faults.catalogue import Fault, Weights, model_fault
from conformance.implementations.base import Model
from conformance.implementations.reference import Reference, ReferenceModel
from conformance.weight_maps import from_format
from conformance.weights import adjacent_rows
from reference_impl import LlamaConfig
from reference_impl.rope import to_adjacent, to_half_split

Change = Callable[[LlamaConfig, Weights], Weights]
ADJACENT = ("meta", "torchtune", "gguf")
FUSED = ("litgpt",)


class WrongImport(Reference):
    """The reference behind a map that reads some formats wrongly.

    Args:
        name: of the fault.
        change: what it makes of the weights.
        formats: which it reads so.
    """

    def __init__(self, name: str, change: Change, formats: tuple[str, ...]) -> None:
        super().__init__(None, name)
        self._change = change
        self._formats = formats

    def build_from(self, format_name: str, config: LlamaConfig, tensors: Mapping[str, Tensor]) -> Model:
        """See Implementation.build_from."""
        if format_name not in self._formats:
            return super().build_from(format_name, config, tensors)
        return self.build(config, self._change(config, from_format(format_name, config, tensors)))


def import_fault(name: str, source: str, change: Change, formats: tuple[str, ...] = ADJACENT) -> Fault:
    """A fault in reading some formats."""

    def make() -> Reference:
        return WrongImport(f"fault:{name}", change, formats)

    return Fault(name=name, requirement="WEIGHT-7", make=make, source=source)


def export_fault(name: str, source: str, change: Change) -> Fault:
    """A fault in what a built model exports."""

    class Wrong(ReferenceModel):
        def state_dict(self) -> dict[str, Tensor]:
            return change(self.llama.config, super().state_dict())

    return model_fault(name, "WEIGHT-7", source, Wrong)


def k_by_query_heads(config: LlamaConfig, weights: Weights) -> Weights:
    """k brought back to half-split pairs by the number of query heads; what it does not divide stays."""
    heads, changed = config.num_attention_heads, dict(weights)
    for name in (name for name in weights if ".k_proj." in name):
        rows = to_adjacent(weights[name], config.num_key_value_heads)
        whole = rows.shape[0] // (2 * heads) * 2 * heads
        changed[name] = torch.cat([to_half_split(rows[:whole], heads), rows[whole:]])
    return changed


def q_turned_twice(config: LlamaConfig, weights: Weights) -> Weights:
    """q permuted once more instead of back; with d = 4 the permutation is its own inverse."""
    heads = config.num_attention_heads
    return weights | {
        name: to_adjacent(to_adjacent(weight, heads), heads)
        for name, weight in weights.items()
        if ".q_proj." in name
    }


def v_too(config: LlamaConfig, weights: Weights) -> Weights:
    """v permuted like k."""
    heads = config.num_key_value_heads
    return weights | {n: to_half_split(weight, heads) for n, weight in weights.items() if ".v_proj." in n}


def biases_left(config: LlamaConfig, weights: Weights) -> Weights:
    """Rows of q and k brought back, their biases not."""
    biases = {name: weight for name, weight in weights.items() if name.endswith(".bias")}
    return weights | adjacent_rows(config, biases)


def in_parts(config: LlamaConfig, weights: Weights, split: Callable[[Tensor], tuple[Tensor, ...]]) -> Weights:
    """q, k and v of every layer cut out of one tensor in another way."""
    changed = dict(weights)
    for layer in range(config.num_hidden_layers):
        names = [f"model.layers.{layer}.self_attn.{part}_proj.weight" for part in "qkv"]
        changed |= zip(names, split(torch.cat([weights[name] for name in names])), strict=True)
    return changed


def kept_as_qvk(config: LlamaConfig, weights: Weights) -> Weights:
    """The fused tensor taken for q, v, k."""
    q, kv = (heads * config.head_dim for heads in (config.num_attention_heads, config.num_key_value_heads))
    return in_parts(config, weights, lambda fused: (fused[:q], fused[q + kv :], fused[q : q + kv]))


def kept_by_groups(config: LlamaConfig, weights: Weights) -> Weights:
    """The fused tensor taken for groups of their query heads, their k and their v."""

    def split(fused: Tensor) -> tuple[Tensor, ...]:
        parts = [config.group_size * config.head_dim, config.head_dim, config.head_dim]
        groups = fused.view(config.num_key_value_heads, sum(parts), -1)
        q, k, v = torch.split(groups, parts, dim=1)
        return q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)

    return in_parts(config, weights, split)


def q_by_heads_of_a_shard(config: LlamaConfig, weights: Weights) -> Weights:
    """q put together from two shards, then brought back by the heads of one of them."""
    heads = config.num_attention_heads
    return weights | {
        name: to_half_split(to_adjacent(weight, heads), heads // 2)
        for name, weight in weights.items()
        if ".q_proj." in name
    }


def kept_behind_the_hidden_size(config: LlamaConfig, weights: Weights) -> Weights:
    """The fused tensor with k and v looked for behind as many rows as the model is wide."""
    q, kv = (heads * config.head_dim for heads in (config.num_attention_heads, config.num_key_value_heads))
    k = min(config.hidden_size, q)
    return in_parts(config, weights, lambda fused: (fused[:q], fused[k : k + kv], fused[k + kv : k + 2 * kv]))


def o_columns_by_rank(config: LlamaConfig, weights: Weights) -> Weights:
    """Columns of o ordered by the rank of a head in its group first: g·G + h for h·(H/G) + g."""
    sizes = (config.num_key_value_heads, config.group_size, config.head_dim)
    return weights | {
        name: weight.view(-1, *sizes).transpose(1, 2).flatten(1)
        for name, weight in weights.items()
        if name.endswith("o_proj.weight")
    }


def through_float16(_config: LlamaConfig, weights: Weights) -> Weights:
    """Rounded to float16 on the way."""
    return {name: weight.half().to(weight.dtype) for name, weight in weights.items()}


def in_float32(_config: LlamaConfig, weights: Weights) -> Weights:
    """Widened to float32, whatever came in."""
    return {name: weight.float() for name, weight in weights.items()}


def with_tied_head(config: LlamaConfig, weights: Weights) -> Weights:
    """A tied unembedding as a tensor of its own."""
    tied = config.tie_word_embeddings
    return weights | ({"lm_head.weight": weights["model.embed_tokens.weight"].clone()} if tied else {})


FAULTS: list[Fault] = [
    import_fault("formats.not-permuted", "pytorch/torchtitan#1441", adjacent_rows),
    import_fault("formats.k-by-query-heads", "huggingface/transformers#31788", k_by_query_heads),
    import_fault("formats.q-turned-twice", "AI-Hypercomputer/maxtext#581", q_turned_twice),
    import_fault("formats.v-too", "classical", v_too),
    import_fault("formats.biases-left", "classical", biases_left),
    import_fault("formats.qvk", "classical", kept_as_qvk, FUSED),
    import_fault("formats.qkv-by-groups", "Lightning-AI/litgpt#891", kept_by_groups, FUSED),
    import_fault(
        "formats.qkv-behind-the-hidden-size", "Lightning-AI/litgpt#2201", kept_behind_the_hidden_size, FUSED
    ),
    import_fault("formats.q-by-heads-of-a-shard", "huggingface/transformers#21955", q_by_heads_of_a_shard),
    import_fault("formats.o-columns-by-rank", "nntile/nntile#347", o_columns_by_rank),
    import_fault("formats.through-float16", "TransformerLensOrg/TransformerLens#615", through_float16),
    export_fault("formats.export-permuted", "AI-Hypercomputer/maxtext#1774", adjacent_rows),
    export_fault("formats.export-k-by-query-heads", "ggml-org/llama.cpp#2376", k_by_query_heads),
    export_fault("formats.export-through-float16", "classical", through_float16),
    export_fault("formats.export-in-float32", "classical", in_float32),
    export_fault("formats.export-tied-head", "vllm-project/vllm#6758", with_tied_head),
]
