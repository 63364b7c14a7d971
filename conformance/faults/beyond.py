"""Positions beyond the longest context of the config: garbage, or a refusal without a word."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from conformance.faults.catalogue import Fault, llama_fault, model_fault
from conformance.implementations.reference import ReferenceModel
from reference_impl import KVCache, Llama
from reference_impl.block import Step, Tap, no_tap


class Placed(Llama):
    """A model whose positions go through at() first."""

    def at(self, positions: Tensor) -> Tensor:
        """Where tokens are taken to stand."""
        raise NotImplementedError

    def step(
        self,
        layer: int,
        positions: Tensor,
        mask: Tensor | None,
        cache: KVCache | None = None,
        tap: Tap = no_tap,
    ) -> Step:
        """See Llama.step."""
        return super().step(layer, self.at(positions), mask, cache, tap)


class LastRow(Placed):
    """The last row of the table for all that lies beyond it."""

    def at(self, positions: Tensor) -> Tensor:
        """See Placed.at."""
        return positions.clamp(max=self.config.max_position_embeddings - 1)


class Wrapped(Placed):
    """The table from its beginning again."""

    def at(self, positions: Tensor) -> Tensor:
        """See Placed.at."""
        return positions % self.config.max_position_embeddings


class OneRowForAll(Placed):
    """A slice of the table that ends with it, broadcast where a single row is left."""

    def at(self, positions: Tensor) -> Tensor:
        """See Placed.at."""
        last = self.config.max_position_embeddings - 1
        single = positions.shape[-1] > 1 and int(positions.amin()) == last
        return torch.full_like(positions, last) if single else positions


class NoRows(Llama):
    """A table filled with zeros behind its rows: with cos and sin both 0, as at no position at all."""

    def step(
        self,
        layer: int,
        positions: Tensor,
        mask: Tensor | None,
        cache: KVCache | None = None,
        tap: Tap = no_tap,
    ) -> Step:
        """See Llama.step."""
        step = super().step(layer, positions, mask, cache, tap)
        there = (positions < self.config.max_position_embeddings)[..., None].to(step.cos.dtype)
        return replace(step, cos=step.cos * there, sin=step.sin * there)


class WithoutAWord(ReferenceModel):
    """Longer sequences fail an assertion that says nothing."""

    def logits(
        self, tokens_BT: Tensor, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """See Model.logits."""
        if tokens_BT.shape[1] > self.llama.config.max_position_embeddings:
            raise AssertionError
        return super().logits(tokens_BT, positions, mask)


class TurnedDown(ReferenceModel):
    """A sequence that is too long is right, and turns the frequencies down for all that fit, for good."""

    turned = False

    def logits(
        self, tokens_BT: Tensor, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """See Model.logits."""
        if tokens_BT.shape[1] > self.llama.config.max_position_embeddings:
            self.turned = True
            return super().logits(tokens_BT, positions, mask)
        right = self.llama.inv_freq
        self.llama.inv_freq = right / 2 if self.turned else right
        try:
            return super().logits(tokens_BT, positions, mask)
        finally:
            self.llama.inv_freq = right


FAULTS: list[Fault] = [
    llama_fault("rope.last-row-beyond", "ROPE-14", "mlc-ai/mlc-llm#780", LastRow),
    llama_fault("rope.wrapped-beyond", "ROPE-14", "classical", Wrapped),
    llama_fault("rope.one-row-for-a-chunk", "ROPE-14", "classical", OneRowForAll),
    llama_fault("rope.no-rows-beyond", "ROPE-14", "vllm-project/vllm-ascend#1266", NoRows),
    model_fault("rope.refused-without-a-word", "ROPE-14", "classical", WithoutAWord),
    model_fault("rope.turned-down-beyond", "ROPE-14", "classical", TurnedDown),
]
