"""Cases: what a check runs on, as compact specs that a seeded generator turns into tensors.

A case is a frozen record of a few words and numbers, so it can be drawn, compared, cached by, printed, and
pasted back with --case. Patterns make the inputs in which faults show; plain noise hides many.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from conformance.inputs import DTYPES, Pattern, draw
from conformance.variants import first_with, variants
from conformance.weights import Regime, make_weights
from reference_impl import LlamaConfig, Rope

Changes = tuple[tuple[str, Any], ...]


def changed(config: LlamaConfig, but: Changes) -> LlamaConfig:
    """A config that differs in some fields; those of the frequency rule are spelt "rope.factor".

    Raises:
        ValueError: the config has no such field, or it does not fit the others.
    """
    of_rope = {name.removeprefix("rope."): value for name, value in but if name.startswith("rope.")}
    own = {name: value for name, value in but if not name.startswith("rope.")}
    try:
        return replace(config, rope=replace(config.rope, **of_rope), **own)
    except TypeError as error:
        raise ValueError(f"no config can be built with {but!r}: {error}") from error


@dataclass(frozen=True, kw_only=True)
class Case:
    """What all cases have.

    Args:
        dtype: name of the dtype the implementation computes in.
        seed: of the generator.
    """

    kinds: ClassVar[dict[str, type[Case]]] = {}

    dtype: str = "float32"
    seed: int = 0

    def __init_subclass__(cls) -> None:
        Case.kinds[cls.__name__] = cls

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype itself."""
        return DTYPES[self.dtype]

    @property
    def subject(self) -> str:
        """The variant the record belongs to; "ops" where the case needs no architecture."""
        return str(getattr(self, "variant", "ops"))

    @property
    def spec(self) -> str:
        """The case as it is printed and pasted: its dtype, and what differs from the defaults."""
        given = [f for f in fields(self) if f.name == "dtype" or getattr(self, f.name) != f.default]
        return f"{type(self).__name__}({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in given)})"

    @property
    def question(self) -> Case:
        """The case without what does not change the right answer, so that cases can share an oracle."""
        return self.twin

    @property
    def twin(self) -> Case:
        """The first case that asks the same of the same architecture; variants may share a small config."""
        return self

    def _draw(self, offset: int, shape: tuple[int, ...], pattern: Pattern, scale: float = 1.0) -> Tensor:
        return draw(shape, 1000 * self.seed + offset, pattern, scale, self.torch_dtype)


@dataclass(frozen=True, kw_only=True)
class NormCase(Case):
    """Rows [rows, n] to be normed."""

    n: int = 48
    rows: int = 5
    eps: float = 1e-5
    pattern: Pattern = "noise"
    scale: float = 1.0

    def inputs(self) -> tuple[Tensor, Tensor]:
        """x [rows, n], weight [n]."""
        x = self._draw(1, (self.rows, self.n), self.pattern, self.scale)
        return x, (1 + 0.3 * self._draw(2, (self.n,), "noise").float()).to(self.torch_dtype)


@dataclass(frozen=True, kw_only=True)
class GateCase(Case):
    """gate and up [rows, width]."""

    width: int = 80
    rows: int = 5
    pattern: Pattern = "noise"
    up_pattern: Pattern = "noise"
    scale: float = 1.0

    def inputs(self) -> tuple[Tensor, Tensor]:
        """gate, up [rows, width]; scale is the gate's."""
        shape = (self.rows, self.width)
        return self._draw(1, shape, self.pattern, self.scale), self._draw(2, shape, self.up_pattern)


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

    def positions(self) -> Tensor:
        """[tokens] int64."""
        return self.start + self.stride * torch.arange(self.tokens)


@dataclass(frozen=True, kw_only=True)
class RotateCase(Case):
    """q [B, heads, T, d] and k [B, kv_heads, T, d] to be rotated."""

    batch: int = 2
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 16
    tokens: int = 9
    start: int = 0
    shift: int = 0
    theta: float = 5e5
    pattern: Pattern = "noise"

    def inputs(self) -> tuple[Tensor, Tensor]:
        """q, k."""
        q = self._draw(1, (self.batch, self.heads, self.tokens, self.head_dim), self.pattern)
        k = self._draw(2, (self.batch, self.kv_heads, self.tokens, self.head_dim), self.pattern)
        return q, k

    @property
    def config(self) -> LlamaConfig:
        """A config whose tables these are."""
        return LlamaConfig(
            vocab_size=131,
            hidden_size=self.heads * 8,
            intermediate_size=80,
            num_hidden_layers=1,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim,
            rope=Rope(rope_theta=self.theta),
            max_position_embeddings=131072,
        )

    def positions(self) -> Tensor:
        """[T] int64; the shift comes on top."""
        return self.start + torch.arange(self.tokens)


@dataclass(frozen=True, kw_only=True)
class AttentionCase(Case):
    """Rotated q [B, heads, T, d] on k, v [B, kv_heads, S, d]; S ≥ T, causal bottom-right.

    gain makes scores larger and attention sharper.
    """

    batch: int = 2
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 16
    tokens: int = 9
    past: int = 0
    pattern: Pattern = "noise"
    v_pattern: Pattern = "noise"
    gain: float = 2.0

    @property
    def keys(self) -> int:
        """S."""
        return self.past + self.tokens

    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v."""
        q = self._draw(1, (self.batch, self.heads, self.tokens, self.head_dim), self.pattern, self.gain)
        k = self._draw(2, (self.batch, self.kv_heads, self.keys, self.head_dim), "noise")
        v = self._draw(3, (self.batch, self.kv_heads, self.keys, self.head_dim), self.v_pattern)
        return q, k, v


@dataclass(frozen=True, kw_only=True)
class ModelCase(Case):
    """A small model of a variant and tokens [batch, tokens] for it.

    Args:
        variant, shape: which config.
        regime: of the weights.
        batch, tokens: B, T.
        chunks: how the tokens are split over calls with a cache; () where they are not.
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

    def hidden(self) -> Tensor:
        """A residual stream [B, T, D], as an input for one layer."""
        return self._draw(5, (self.batch, self.tokens, self.config.hidden_size), "noise")

    @property
    def model_key(self) -> tuple[Any, ...]:
        """What two cases must share to share a built model."""
        return (self.config, self.regime, self.seed, self.dtype)


@functools.lru_cache(maxsize=128)
def _weights(config: LlamaConfig, seed: int, regime: Regime, dtype: str) -> dict[str, Tensor]:
    return make_weights(config, seed, regime, DTYPES[dtype])
