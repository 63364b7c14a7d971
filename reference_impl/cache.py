"""KV caches: rotated keys and values of the tokens seen so far, all of them or the last of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from reference_impl.config import LlamaConfig


class KVCache:
    """Keys and values per layer, [B, G, capacity, d]; G heads are stored, not H.

    Args:
        config: sizes.
        batch: B.
        capacity: in tokens.
        dtype: of the model.
        device: of the model.

    Attributes:
        length: tokens processed so far, padding included.
        processed: [B], how many of them were real.
    """

    def __init__(
        self,
        config: LlamaConfig,
        batch: int,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device | None = None,
    ) -> None:
        shape = (
            config.num_hidden_layers,
            batch,
            config.num_key_value_heads,
            capacity,
            config.head_dim,
        )
        self.k = torch.zeros(shape, dtype=dtype, device=device)
        self.v = torch.zeros(shape, dtype=dtype, device=device)
        self.real: Tensor | None = None  # [B, kept] bool, False = padding; None where all are real
        self.processed = torch.zeros(batch, dtype=torch.int64, device=device)
        self.capacity = capacity
        self.length = 0

    @property
    def kept(self) -> int:
        """How many of the tokens processed are still stored."""
        return self.length

    def extend(self, layer: int, k_BGTd: Tensor, v_BGTd: Tensor) -> tuple[Tensor, Tensor]:
        """Write the new keys and values behind the stored ones and return them all, [B, G, kept + T, d]."""
        end = self.length + k_BGTd.shape[2]
        self.k[layer, :, :, self.length : end] = k_BGTd
        self.v[layer, :, :, self.length : end] = v_BGTd
        return self.k[layer, :, :, :end], self.v[layer, :, :, :end]

    def remember(self, tokens: int, real_BT: Tensor | None) -> Tensor | None:
        """Note which new tokens are real; those of all kept and new [B, kept + T], or None where all are."""
        if real_BT is None and self.real is None:
            return None
        ones = torch.ones(len(self.processed), self.kept + tokens, dtype=torch.bool, device=self.k.device)
        if self.real is not None:
            ones[:, : self.kept] = self.real
        if real_BT is not None:
            ones[:, self.kept :] = real_BT
        self.real = ones
        return ones

    def advance(self, tokens: int) -> None:
        """Count the tokens that every layer has written."""
        self.processed = self.processed + (tokens if self.real is None else self.real[:, self.kept :].sum(1))
        self.length += tokens

    def require_room(self, tokens: int) -> None:
        """Refuse, before anything is written, a step that does not fit.

        Raises:
            ValueError: length + tokens > capacity.
        """
        if self.length + tokens > self.capacity:
            raise ValueError(
                f"{tokens} more tokens do not fit: {self.length} of {self.capacity} are used; "
                "build the cache with a larger capacity or reset it (nothing was written)"
            )

    def reset(self) -> None:
        """Forget all tokens."""
        self.length, self.real = 0, None
        self.processed = torch.zeros_like(self.processed)

    def crop(self, length: int) -> None:
        """Forget all tokens behind the first `length`, as a draft that is not taken is rolled back.

        Raises:
            ValueError: there are not so many, or the first of them are no longer stored.
        """
        if not 0 <= length <= self.length or self.kept < self.length:
            raise ValueError(
                f"cannot go back to {length} tokens: {self.kept} of the {self.length} processed are stored"
            )
        dropped = self.length - length
        if self.real is None:
            self.processed = self.processed - dropped
        else:
            self.processed = self.processed - self.real[:, length:].sum(1)
            self.real = self.real[:, :length]
        self.length = length

    def reorder(self, rows_B: Tensor) -> None:
        """Row i becomes what row rows[i] was, as beams are reordered."""
        self.k, self.v = self.k[:, rows_B], self.v[:, rows_B]
        self.processed = self.processed[rows_B]
        self.real = None if self.real is None else self.real[rows_B]


class WindowCache(KVCache):
    """The last w − 1 tokens: with the one at hand they are all that a sliding window of w shows.

    Where the capacity is no less than that, it never fills up.
    """

    def __init__(
        self,
        config: LlamaConfig,
        batch: int,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device | None = None,
    ) -> None:
        assert config.sliding_window is not None
        self.most = config.sliding_window - 1
        super().__init__(config, batch, min(self.most, capacity), dtype, device)
        self.capacity = capacity

    @property
    def kept(self) -> int:
        """See KVCache.kept."""
        return min(self.length, self.most)

    def extend(self, layer: int, k_BGTd: Tensor, v_BGTd: Tensor) -> tuple[Tensor, Tensor]:
        """See KVCache.extend; a chunk sees what was stored before any of it is dropped."""
        k = torch.cat([self.k[layer, :, :, : self.kept], k_BGTd], dim=2)
        v = torch.cat([self.v[layer, :, :, : self.kept], v_BGTd], dim=2)
        first = max(k.shape[2] - self.most, 0)
        self.k[layer, :, :, : k.shape[2] - first] = k[:, :, first:]
        self.v[layer, :, :, : v.shape[2] - first] = v[:, :, first:]
        return k, v

    def advance(self, tokens: int) -> None:
        """See KVCache.advance."""
        super().advance(tokens)
        if self.real is not None:
            self.real = self.real[:, max(self.real.shape[1] - self.most, 0) :]

    def require_room(self, tokens: int) -> None:
        """See KVCache.require_room; a whole window has always room."""
        if self.capacity < self.most:
            super().require_room(tokens)
