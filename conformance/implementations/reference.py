"""The reference as an implementation: it is judged by the same suites, and faults are seeded through it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from conformance.checkpoints.config_json import rope_from_hf
from conformance.implementations.base import Attend, Held, Implementation, Model, Show, Unsupported
from conformance.implementations.rows import LeftPadded
from conformance.weight_maps import FORMATS, from_format, renamed
from conformance.weights import check_state_dict, half_split_rows
from reference_impl import KVCache, Llama, LlamaConfig, Ops
from reference_impl.attention import fused_attention
from reference_impl.config import gated_width
from reference_impl.model import loss
from reference_impl.ops import apply_rope_adjacent

# GGUF's rows are in adjacent pairs as well, and are put back: so both ways are taken.
ROTATED_AS_THEY_ARE = ("meta", "torchtune")


class ReferenceModel(Model):
    """A reference Llama behind the protocol."""

    def __init__(self, llama: Llama) -> None:
        self.llama = llama

    def logits(
        self, tokens_BT: Tensor, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """See Model.logits."""
        if mask is not None and mask.ndim == 2:
            return self.llama(tokens_BT, positions=positions, real=mask)
        return self.llama(tokens_BT, positions=positions, mask=None if mask is None else mask[:, None])

    def new_cache(self, batch: int, capacity: int, kind: str = "") -> KVCache:  # noqa: ARG002 - there is one
        """See Model.new_cache."""
        return self.llama.new_cache(batch, capacity)

    def step(self, tokens_BT: Tensor, cache: KVCache) -> Tensor:
        """See Model.step."""
        return self.llama(tokens_BT, cache=cache)

    def prefill(self, tokens_BT: Tensor, cache: KVCache, lengths_B: Tensor) -> Tensor:
        """With the filler moved to the left, where a sliding window does not count it."""
        rows = LeftPadded(tokens_BT, lengths_B)
        return rows.back(self.llama(rows.tokens, real=rows.real, cache=cache))

    def reset(self, cache: KVCache) -> None:
        """See Model.reset."""
        cache.reset()

    def crop(self, cache: KVCache, length: int) -> None:
        """See Model.crop."""
        if cache.kept < cache.length:
            raise Unsupported("a sliding window's cache has dropped what lies behind it: no way back")
        cache.crop(length)

    def reorder(self, cache: KVCache, rows_B: Tensor) -> None:
        """See Model.reorder."""
        cache.reorder(rows_B)

    def attention_module(self, x_BTD: Tensor, positions: Tensor, layer: int) -> Tensor:
        """See Model.attention_module."""
        return self._part(self.llama.ops.attention_module, x_BTD, positions, layer)

    def mlp(self, x_BTD: Tensor, layer: int) -> Tensor:
        """See Model.mlp."""
        return self._part(self.llama.ops.mlp, x_BTD, torch.arange(x_BTD.shape[1]), layer)

    def block(self, x_BTD: Tensor, positions: Tensor, layer: int) -> Tensor:
        """See Model.block."""
        return self._part(self.llama.ops.block, x_BTD, positions, layer)

    def _part(self, part: Callable[..., Tensor], x_BTD: Tensor, positions: Tensor, layer: int) -> Tensor:
        tokens = x_BTD.shape[1]
        mask = self.llama.mask(tokens, tokens, x_BTD.device)
        return part(x_BTD, self.llama.layers[layer], self.llama.step(layer, positions, mask))

    def watch(self, tokens_BT: Tensor, show: Show) -> None:
        """See Model.watch."""
        self.llama(tokens_BT, tap=show)

    def state_dict(self) -> dict[str, Tensor]:
        """See Model.state_dict."""
        return dict(self.llama.weights)

    def held(self) -> list[Held]:
        """The weights; the frequencies are derived from the config, and no part of the state_dict."""
        frequencies = Held(name="inv_freq", tensor=self.llama.inv_freq, kind="buffer", saved=False)
        weights = self.llama.weights.items()
        return [*(Held(name=n, tensor=w, kind="parameter", saved=True) for n, w in weights), frequencies]

    def cast(self, dtype: torch.dtype) -> Model:
        """The weights alone; angles are float32 in every dtype."""
        llama = self.llama
        return type(self)(Llama(llama.config, llama.weights, ops=llama.ops, dtype=dtype))

    def reloaded(self, folder: Path) -> Model:
        """The state_dict by safetensors; frequencies follow from the config."""
        llama, file = self.llama, folder / "model.safetensors"
        save_file({name: w.contiguous() for name, w in llama.weights.items()}, file)
        return type(self)(Llama(llama.config, load_file(file), ops=llama.ops, dtype=llama.dtype))

    def cache_tensors(self, cache: KVCache) -> list[Tensor]:
        """See Model.cache_tensors."""
        return [cache.k, cache.v]

    def loss(self, tokens_BT: Tensor) -> Tensor:
        """See Model.loss."""
        return loss(self.logits(tokens_BT), tokens_BT)

    def gradients(self, tokens_BT: Tensor) -> list[Tensor]:
        """See Model.gradients."""
        llama = self.llama
        leaves = {name: w.detach().clone().requires_grad_() for name, w in llama.weights.items()}
        with torch.enable_grad():
            logits = Llama(llama.config, leaves, ops=llama.ops, dtype=llama.dtype)(tokens_BT)
            loss(logits, tokens_BT).backward()  # type: ignore[no-untyped-call]
        return [w.grad for w in leaves.values() if w.grad is not None]


class AdjacentModel(ReferenceModel):
    """One whose rows of q and k are in adjacent pairs, as they came."""

    def state_dict(self) -> dict[str, Tensor]:
        """See Model.state_dict."""
        return half_split_rows(self.llama.config, super().state_dict())


class Reference(Implementation):
    """The reference with the ops it is given.

    Args:
        ops: another choice of primitive functions; the right ones where None.
        name: another name.
        model: what it builds.
    """

    name = "reference"

    def __init__(
        self, ops: Ops | None = None, name: str = "reference", model: type[ReferenceModel] = ReferenceModel
    ) -> None:
        self.ops = ops or Ops()
        self.name = name
        self.model = model

    def build(self, config: LlamaConfig, weights: Mapping[str, Tensor]) -> Model:
        """See Implementation.build."""
        check_state_dict(config, weights)
        dtype = weights["model.embed_tokens.weight"].dtype
        return self.model(Llama(config, weights, ops=self.ops, dtype=dtype))

    def build_adjacent(self, config: LlamaConfig, weights: Mapping[str, Tensor]) -> Model:
        """The same with adjacent pairs rotated."""
        return Reference(replace(self.ops, apply_rope=apply_rope_adjacent)).build(config, weights)

    def formats(self) -> tuple[str, ...]:
        """See Implementation.formats."""
        return FORMATS

    def build_from(self, format_name: str, config: LlamaConfig, tensors: Mapping[str, Tensor]) -> Model:
        """Rows of Meta and torchtune are rotated as they are, by adjacent pairs; all else is mapped first."""
        if format_name not in ROTATED_AS_THEY_ARE:
            return self.build(config, from_format(format_name, config, tensors))
        adjacent = Reference(replace(self.ops, apply_rope=apply_rope_adjacent), self.name, AdjacentModel)
        return adjacent.build(config, renamed(format_name, config, tensors))

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See Implementation.rms_norm."""
        return self.ops.rms_norm(x, weight, eps)

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        """See Implementation.silu_mul."""
        return self.ops.gated(gate, up, "silu", self.ops)

    def rope_tables(self, config: LlamaConfig, positions: Tensor) -> tuple[Tensor, Tensor]:
        """See Implementation.rope_tables."""
        frequencies = self.ops.inv_freq(config.rope, config.head_dim, torch.float32)
        return self.ops.tables(frequencies, positions, torch.float32)

    def apply_rope(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """See Implementation.apply_rope."""
        half = cos.shape[-1] // 2
        return self.ops.apply_rope(q, k, cos[..., :half], sin[..., :half])

    def apply_rope_adjacent(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """See Implementation.apply_rope_adjacent."""
        return apply_rope_adjacent(q, k, cos, sin)

    def json_rope_tables(self, config_json: dict[str, Any], positions: Tensor) -> tuple[Tensor, Tensor]:
        """By the reader of checkpoints."""
        frequencies = self.ops.inv_freq(rope_from_hf(config_json), config_json["head_dim"], torch.float32)
        return self.ops.tables(frequencies, positions, torch.float32)

    def ffn_width(self, hidden_size: int, multiple_of: int, multiplier: float) -> int:
        """See Implementation.ffn_width."""
        return gated_width(hidden_size, multiple_of, multiplier)

    def attention_cores(self) -> dict[str, Attend]:
        """As written, and as fused kernels keep their scores."""
        ops = self.ops
        return {
            "plain": lambda q, k, v, mask, scale: ops.attention(q, k, v, mask, scale, ops),
            "fused": lambda q, k, v, mask, scale: fused_attention(q, k, v, mask, scale, ops),
        }

    def attention_core(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
        """See Implementation.attention_core."""
        return self.ops.attention(q, k, v, mask, scale, self.ops)

    def additive_attention_core(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
        """The reference's masks are boolean: what an additive one says is that."""
        return self.ops.attention(q, k, v, mask == 0, scale, self.ops)
