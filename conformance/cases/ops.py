"""Cases of single ops. Patterns make the inputs in which faults show; plain noise hides many."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from conformance.cases.base import Case
from conformance.inputs import Pattern
from reference_impl import LlamaConfig, Rope


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
class WidthCase(Case):
    """The width of a gated network by the rule of Meta's params.json."""

    hidden_size: int = 4096
    multiple_of: int = 256
    multiplier: float = 1.0


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
