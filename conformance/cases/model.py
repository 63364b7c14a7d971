"""Cases of an architecture: its tables, and small models of it on tokens."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from conformance.cases.base import Case, Changes, changed
from conformance.inputs import DTYPES
from conformance.variants import first_with, variants
from conformance.weights import Regime, make_weights
from reference_impl import LlamaConfig


@dataclass(frozen=True, kw_only=True)
class TableCase(Case):
    """cos and sin tables of a variant's frequency rule at positions start, start + stride, …."""

    variant: str = "llama-3.1-8b"
    shape: str = "real"
    start: int = 0
    tokens: int = 65
    stride: int = 1
    but: Changes = ()

    @property
    def config(self) -> LlamaConfig:
        """The config whose rule and head width are meant."""
        return changed(variants([self.variant])[0].shape(self.shape), self.but)

    @property
    def twin(self) -> TableCase:
        """The first case of the same rule, on the same head width; nothing else of a config matters."""
        mine = variants([self.variant])[0].shape(self.shape)
        same = (
            replace(self, variant=other.name, shape=shape)
            for other in variants()
            for shape in ("real", *other.small)
            if (config := other.shape(shape)).rope == mine.rope and config.head_dim == mine.head_dim
        )
        return next(same)

    def positions(self) -> Tensor:
        """[tokens] int64."""
        return self.start + self.stride * torch.arange(self.tokens)


Places = Literal["run", "origin", "gaps", "reset", "backwards", "far", "rows"]
FAR = 241  # 17 tokens so far apart reach position 3856; odd, so that no 16-bit number holds them
# Position ids are values: whoever takes them for 0 … T−1 is wrong on all but the first.
PLACES: dict[str, Callable[[int, int], Tensor]] = {
    "run": lambda tokens, _batch: torch.arange(tokens),
    "origin": lambda tokens, _batch: torch.zeros(tokens, dtype=torch.int64),
    "gaps": lambda tokens, _batch: torch.arange(tokens) + torch.arange(tokens) // 4 * 5,
    "reset": lambda tokens, _batch: torch.arange(tokens) % 5,
    "backwards": lambda tokens, _batch: torch.arange(tokens).flip(0),
    "far": lambda tokens, _batch: torch.arange(tokens) * FAR,
    "rows": lambda tokens, batch: torch.arange(tokens) * (1 + torch.arange(batch)[:, None]),
}


@dataclass(frozen=True, kw_only=True)
class ModelCase(Case):
    """A small model of a variant and tokens [batch, tokens] for it.

    Args:
        variant, shape: which config.
        regime: of the weights.
        batch, tokens: B, T.
        chunks: how the tokens are split over calls with a cache; () where they are not.
        places: where the tokens stand, see PLACES.
        layer: for checks on one layer.
        but: fields in which the config differs from the variant's, such as (("hidden_act", "gelu"),); those
            of the frequency rule are spelt "rope.factor".
    """

    variant: str = "llama-3-8b"
    shape: str = "gqa"
    regime: Regime = "loud"
    batch: int = 3
    tokens: int = 65
    chunks: tuple[int, ...] = ()
    places: Places = "run"
    layer: int = 0
    but: Changes = ()

    def __post_init__(self) -> None:
        if self.chunks and sum(self.chunks) != self.tokens:
            raise ValueError(
                f"chunks {self.chunks} add up to {sum(self.chunks)}, not to {self.tokens} tokens"
            )

    @property
    def config(self) -> LlamaConfig:
        """The small config, with what is changed in it."""
        return changed(variants([self.variant])[0].shape(self.shape), self.but)

    @property
    def question(self) -> Case:
        """However the tokens are chunked, the right answer is the same."""
        return replace(self.twin, chunks=())

    @property
    def twin(self) -> ModelCase:
        """See Case.twin."""
        variant, shape = first_with(variants([self.variant])[0].shape(self.shape))
        return replace(self, variant=variant, shape=shape)

    def weights(self) -> dict[str, Tensor]:
        """Canonical state_dict in the case's dtype; cached, so do not write into it."""
        return _weights(self.config, self.seed, self.regime, self.dtype)

    def token_ids(self) -> Tensor:
        """[B, T] int64."""
        generator = torch.Generator().manual_seed(1000 * self.seed + 4)
        return torch.randint(0, self.config.vocab_size, (self.batch, self.tokens), generator=generator)

    def positions(self) -> Tensor:
        """[T] int64, or [B, T] where every row has its own."""
        return PLACES[self.places](self.tokens, self.batch)

    def hidden(self) -> Tensor:
        """A residual stream [B, T, D], as an input for one layer."""
        return self._draw(5, (self.batch, self.tokens, self.config.hidden_size), "noise")

    @property
    def model_key(self) -> tuple[Any, ...]:
        """What two cases must share to share a built model."""
        return (self.config, self.regime, self.seed, self.dtype)


@dataclass(frozen=True, kw_only=True)
class PeakCase(ModelCase):
    """A residual stream so large that one product of gate and up in the layer's network reaches a peak.

    Args:
        peak: the largest |gate| · |up|, 0.9 of which is meant; float16 ends at 65504.
    """

    peak: float = 6e4

    def hidden(self) -> Tensor:
        """See ModelCase.hidden."""
        x, prefix = super().hidden().double(), f"model.layers.{self.layer}.mlp."
        weights = self.weights()
        gate, up = (x @ weights[f"{prefix}{name}_proj.weight"].double().T for name in ("gate", "up"))
        largest = float((gate * up).abs().max())
        factor = math.sqrt(0.9 * self.peak / largest)
        return (x * factor).to(self.torch_dtype)


@functools.lru_cache(maxsize=128)
def _weights(config: LlamaConfig, seed: int, regime: Regime, dtype: str) -> dict[str, Tensor]:
    return make_weights(config, seed, regime, DTYPES[dtype])
