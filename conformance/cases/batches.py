"""Cases in which not every token may see every earlier one: padded rows, packed documents, masks of an op.

Shape suffixes: B batch, T tokens, S keys, H query heads, G kv heads, d head width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from conformance.cases.base import Case
from conformance.cases.model import ModelCase
from conformance.cases.ops import AttentionCase
from reference_impl.attention import causal_mask, in_window

Side = Literal["left", "right"]


@dataclass(frozen=True, kw_only=True)
class PaddedCase(ModelCase):
    """Rows of different length in one batch, filled up to its width.

    Args:
        lengths: how many tokens of each row are real, [batch]; 0 for a row that is padding alone.
        side: where the padding stands.
        filler: token id of the padding, modulo V.
    """

    lengths: tuple[int, ...] = (9, 65, 33)
    side: Side = "left"
    filler: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = len(self.lengths) == self.batch and all(0 <= n <= self.tokens for n in self.lengths)
        if not fits or not any(self.lengths):
            raise ValueError(
                f"lengths {self.lengths} do not fit {self.batch} rows of at most {self.tokens} tokens, "
                "some of them real"
            )

    @property
    def question(self) -> Case:
        """Wherever the padding stands, whatever it is and however much, the right answer is the same."""
        return replace(self._dense(), chunks=(), side="left", filler=0).twin

    def _dense(self) -> PaddedCase:
        """No rows of padding alone, and no more columns than the longest row needs."""
        lengths = tuple(n for n in self.lengths if n)
        return replace(self, batch=len(lengths), tokens=max(lengths), lengths=lengths)

    def real(self) -> Tensor:
        """[B, T] bool, False = padding; the mask."""
        lengths, slots = torch.tensor(self.lengths)[:, None], torch.arange(self.tokens)
        return slots >= self.tokens - lengths if self.side == "left" else slots < lengths

    def mask(self) -> Tensor:
        """What says who sees whom: here, which tokens are real."""
        return self.real()

    def token_ids(self) -> Tensor:
        """[B, T] int64; the real tokens of a row are the same on either side."""
        tokens = torch.full((self.batch, self.tokens), self.filler % self.config.vocab_size)
        tokens[self.real()] = torch.cat([row for row, _ in self.alone()])
        return tokens

    def positions(self) -> Tensor:
        """[B, T] int64, counted over the real tokens."""
        return (self.real().cumsum(dim=1) - 1).clamp(min=0)

    def alone(self) -> list[tuple[Tensor, int]]:
        """Each row that has real tokens without its padding, [n] int64, and where it begins."""
        dense = self._dense()
        rows = super(PaddedCase, dense).token_ids()
        return [(row[:n], 0) for row, n in zip(rows, dense.lengths, strict=True)]


@dataclass(frozen=True, kw_only=True)
class PackedCase(ModelCase):
    """Several documents in each row, one after another, which do not see one another.

    Args:
        documents: their lengths in the first row; in every further row the first of them moves to the end.
        reset: whether positions begin anew in each document, or run on.
    """

    documents: tuple[int, ...] = (5, 9, 3, 1, 30, 17)
    reset: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if sum(self.documents) != self.tokens or min(self.documents) < 1:
            raise ValueError(
                f"documents {self.documents} of at least one token add up to {sum(self.documents)}, "
                f"not to {self.tokens} tokens"
            )

    def lengths(self, row: int) -> tuple[int, ...]:
        """The lengths of the documents of a row."""
        at = row % len(self.documents)
        return self.documents[at:] + self.documents[:at]

    def document(self) -> Tensor:
        """Which document of its row each token belongs to, [B, T] int64."""
        ids = torch.arange(len(self.documents))
        rows = [ids.repeat_interleave(torch.tensor(self.lengths(row))) for row in range(self.batch)]
        return torch.stack(rows)

    def real(self) -> Tensor:
        """[B, T] bool: all tokens are."""
        return torch.ones(self.batch, self.tokens, dtype=torch.bool)

    def mask(self) -> Tensor:
        """[B, T, T] bool, True = attend: the same document, not the future, within the sliding window."""
        document, window = self.document(), self.config.sliding_window
        seen = causal_mask(self.tokens, self.tokens)
        if window is not None:
            seen = seen & in_window(self.tokens, self.tokens, window)
        return seen & (document[:, :, None] == document[:, None, :])

    def positions(self) -> Tensor:
        """[B, T] int64 where they are reset, [T] where they run on."""
        if not self.reset:
            return torch.arange(self.tokens)
        rows = [torch.cat([torch.arange(n) for n in self.lengths(row)]) for row in range(self.batch)]
        return torch.stack(rows)

    def alone(self) -> list[tuple[Tensor, int]]:
        """Each document, [n] int64, and where it begins; row by row."""
        found = []
        for row, tokens in enumerate(self.token_ids()):
            documents = tokens.split(self.lengths(row))
            begins = torch.tensor((0, *self.lengths(row))).cumsum(0).tolist()
            found += [(doc, 0 if self.reset else int(at)) for doc, at in zip(documents, begins, strict=False)]
        return found


def _holes(tokens: int, keys: int, batch: int) -> Tensor:
    noise = torch.rand(batch, 1, tokens, keys, generator=torch.Generator().manual_seed(tokens * keys))
    return (noise < 0.4) | torch.eye(tokens, keys, dtype=torch.bool)


def _padded(tokens: int, keys: int, batch: int, *, left: bool) -> Tensor:
    hidden = (torch.arange(batch) * 3 + 2) % keys
    slots = torch.arange(keys)
    real = slots >= hidden[:, None] if left else slots < keys - hidden[:, None]
    return causal_mask(tokens, keys) & real[:, None, None, :]


def _documents(tokens: int, keys: int, batch: int) -> Tensor:
    document = (torch.arange(keys) + 2 * torch.arange(batch)[:, None]) // 4
    same = document[:, keys - tokens :, None] == document[:, None, :]
    return causal_mask(tokens, keys) & same[:, None]


def _blind(tokens: int, keys: int, every: int) -> Tensor:
    seeing = torch.arange(tokens) % every != 0
    return causal_mask(tokens, keys) & seeing[:, None]


Sight = Literal[
    "causal", "left", "right", "documents", "window", "holes", "blind-first", "blind-some", "blind"
]
# (T, S, B) → which key each query sees, [T, S] or [B, 1, T, S] bool, True = attend; causal ones bottom-right.
# In "left" and "blind…" there are queries that see nothing.
SIGHTS: dict[str, Callable[[int, int, int], Tensor]] = {
    "causal": lambda tokens, keys, _batch: causal_mask(tokens, keys),
    "left": lambda tokens, keys, batch: _padded(tokens, keys, batch, left=True),
    "right": lambda tokens, keys, batch: _padded(tokens, keys, batch, left=False),
    "documents": _documents,
    "window": lambda tokens, keys, _batch: causal_mask(tokens, keys) & in_window(tokens, keys, 3),
    "holes": _holes,
    "blind-first": lambda tokens, keys, _batch: _blind(tokens, keys, tokens),
    "blind-some": lambda tokens, keys, _batch: _blind(tokens, keys, 3),
    "blind": lambda tokens, keys, _batch: _blind(tokens, keys, 1),
}


@dataclass(frozen=True, kw_only=True)
class MaskedAttentionCase(AttentionCase):
    """Attention under a mask that is more than causal.

    Args:
        sight: which key each query sees, see SIGHTS.
        poison: keys and values that no query of a row sees are ± this number, where it is not 0.
        level: every score is minus this number, and 0 with a key that no query of the row sees; a power of
            two, or little more. Where it is 0, scores are as they are drawn.
    """

    sight: Sight = "left"
    poison: float = 0.0
    level: float = 0.0

    @property
    def scale(self) -> float:
        """Of the scores; 1 in float16 where they are set, so that they do not overflow before it."""
        return 1.0 if self.level and self.dtype == "float16" else self.head_dim**-0.5

    def mask(self) -> Tensor:
        """[T, S] or [B, 1, T, S] bool, True = attend."""
        return SIGHTS[self.sight](self.tokens, self.keys, self.batch)

    def rows(self) -> Tensor:
        """The same for every row of the batch, [B, T, S]."""
        mask = self.mask()
        return mask[:, 0] if mask.ndim == 4 else mask.expand(self.batch, -1, -1)

    def sees(self) -> Tensor:
        """[B, T] bool, False = a query that sees nothing."""
        return self.rows().any(dim=-1)

    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v."""
        q, k, v = super().inputs()
        hidden = ~self.rows().any(dim=1)[:, None, :, None]  # [B, 1, S, 1]
        if self.level:
            # One sign an element and kv head: q · k is then exact, and the same for all keys, in any dtype.
            signs = self._draw(4, (self.batch, self.kv_heads, 1, self.head_dim), "noise").sign()
            size = self.head_dim**0.5
            q = (-size * signs).repeat_interleave(self.heads // self.kv_heads, dim=1).expand_as(q)
            k = (signs * (self.level / self.scale / size**3)).expand_as(k).masked_fill(hidden, 0)
        if self.poison:
            k, v = (
                torch.where(hidden, self.poison * self._draw(5 + i, t.shape, "noise").sign(), t)
                for i, t in enumerate((k, v))
            )
        return q, k, v
