"""Cases of single ops. Patterns make the inputs in which faults show; plain noise hides many."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from conformance.cases.base import Case
from conformance.inputs import Layout, Pattern, laid_out
from reference_impl import LlamaConfig, Rope


@dataclass(frozen=True, kw_only=True)
class NormCase(Case):
    """Rows [rows, n] to be normed; [sequences, rows, n] where that is not 0."""

    n: int = 48
    sequences: int = 0
    layout: Layout = "contiguous"
    rows: int = 5
    eps: float = 1e-5
    pattern: Pattern = "noise"
    scale: float = 1.0

    @property
    def question(self) -> Case:
        """However it lies in memory, the right answer is the same."""
        return replace(self, layout="contiguous")

    def inputs(self) -> tuple[Tensor, Tensor]:
        """x [rows, n] or [sequences, rows, n], weight [n]."""
        shape = (self.sequences, self.rows, self.n) if self.sequences else (self.rows, self.n)
        x = laid_out(self._draw(1, shape, self.pattern, self.scale), self.layout)
        return x, (1 + 0.3 * self._draw(2, (self.n,), "noise").float()).to(self.torch_dtype)


@dataclass(frozen=True, kw_only=True)
class GateCase(Case):
    """gate and up [rows, width]; [sequences, rows, width] where that is not 0.

    Sliced, they are halves of one tensor, as of a fused projection.
    """

    width: int = 80
    sequences: int = 0
    rows: int = 5
    pattern: Pattern = "noise"
    up_pattern: Pattern = "noise"
    scale: float = 1.0
    up_scale: float = 1.0
    layout: Layout = "contiguous"

    @property
    def question(self) -> Case:
        """See NormCase.question."""
        return replace(self, layout="contiguous")

    def inputs(self) -> tuple[Tensor, Tensor]:
        """gate and up [rows, width] or [sequences, rows, width]; scale is the gate's."""
        shape = (self.sequences, self.rows, self.width) if self.sequences else (self.rows, self.width)
        gate = self._draw(1, shape, self.pattern, self.scale)
        up = self._draw(2, shape, self.up_pattern, self.up_scale)
        if self.layout == "sliced":
            gate, up = torch.cat([gate, up], dim=-1).chunk(2, dim=-1)
            return gate, up
        return laid_out(gate, self.layout), laid_out(up, self.layout)


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
    layout: Layout = "contiguous"

    @property
    def question(self) -> Case:
        """See NormCase.question; expanded, the values are others."""
        return self if self.layout == "expanded" else replace(self, layout="contiguous")

    def inputs(self) -> tuple[Tensor, Tensor]:
        """q, k."""
        q = self._draw(1, (self.batch, self.heads, self.tokens, self.head_dim), self.pattern)
        k = self._draw(2, (self.batch, self.kv_heads, self.tokens, self.head_dim), self.pattern)
        return laid_out(q, self.layout), laid_out(k, self.layout)

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

    gain makes scores larger and attention sharper. Expanded, k and v are one row for the whole batch.
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
    layout: Layout = "contiguous"

    @property
    def question(self) -> Case:
        """See RotateCase.question."""
        return self if self.layout == "expanded" else replace(self, layout="contiguous")

    @property
    def keys(self) -> int:
        """S."""
        return self.past + self.tokens

    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v."""
        q = self._draw(1, (self.batch, self.heads, self.tokens, self.head_dim), self.pattern, self.gain)
        k = self._draw(2, (self.batch, self.kv_heads, self.keys, self.head_dim), "noise")
        v = self._draw(3, (self.batch, self.kv_heads, self.keys, self.head_dim), self.v_pattern)
        if self.layout != "expanded":
            q = laid_out(q, self.layout)
        return q, laid_out(k, self.layout), laid_out(v, self.layout)


@dataclass(frozen=True, kw_only=True)
class CompiledAttentionCase(AttentionCase):
    """Attention by a kernel that is compiled for this shape."""


@dataclass(frozen=True, kw_only=True)
class LongAttentionCase(AttentionCase):
    """As many tokens as tiles and accumulators are made for; a few queries are compared.

    Args:
        asked: how many queries, evenly spread, the last one among them.
    """

    batch: int = 1
    heads: int = 2
    kv_heads: int = 1
    tokens: int = 4096
    gain: float = 1.0
    asked: int = 9

    def places(self) -> Tensor:
        """[asked] int64: which queries are compared."""
        return torch.linspace(0, self.tokens - 1, self.asked).long()
