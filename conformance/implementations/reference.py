"""The reference as an implementation: it is judged by the same suites, and faults are seeded through it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from conformance.implementations.base import Implementation, Model
from conformance.weights import check_state_dict
from reference_impl import KVCache, Llama, LlamaConfig, Ops


class ReferenceModel(Model):
    """A reference Llama behind the protocol."""

    def __init__(self, llama: Llama) -> None:
        self.llama = llama

    def logits(self, tokens_BT: Tensor, positions: Tensor | None = None) -> Tensor:
        """See Model.logits."""
        return self.llama(tokens_BT, positions=positions)

    def new_cache(self, batch: int, capacity: int) -> KVCache:
        """See Model.new_cache."""
        return self.llama.new_cache(batch, capacity)

    def step(self, tokens_BT: Tensor, cache: KVCache) -> Tensor:
        """See Model.step."""
        return self.llama(tokens_BT, cache=cache)

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
        mask = self.llama.ops.mask(tokens, tokens, x_BTD.device)
        return part(x_BTD, self.llama.layers[layer], self.llama.step(layer, positions, mask))

    def taps(self, tokens_BT: Tensor) -> dict[str, Tensor]:
        """See Model.taps."""
        seen: dict[str, Tensor] = {}
        self.llama(tokens_BT, tap=seen.__setitem__)
        return seen

    def state_dict(self) -> dict[str, Tensor]:
        """See Model.state_dict."""
        return dict(self.llama.weights)


class Reference(Implementation):
    """The reference with the ops it is given.

    Args:
        ops: another choice of primitive functions; the right ones where None.
        name: another name.
    """

    name = "reference"

    def __init__(self, ops: Ops | None = None, name: str = "reference") -> None:
        self.ops = ops or Ops()
        self.name = name

    def build(self, config: LlamaConfig, weights: Mapping[str, Tensor]) -> Model:
        """See Implementation.build."""
        check_state_dict(config, weights)
        dtype = weights["model.embed_tokens.weight"].dtype
        return ReferenceModel(Llama(config, weights, ops=self.ops, dtype=dtype))

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
        half = q.shape[-1] // 2
        return self.ops.apply_rope(q, k, cos[..., :half], sin[..., :half])

    def attention_core(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
        """See Implementation.attention_core."""
        return self.ops.attention(q, k, v, mask, scale, self.ops)
