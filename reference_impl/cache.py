"""A KV cache of fixed capacity: rotated keys and values of the tokens seen so far."""

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
        self.capacity = capacity
        self.length = 0

    def extend(self, layer: int, k_BGTd: Tensor, v_BGTd: Tensor) -> tuple[Tensor, Tensor]:
        """Write the new keys and values behind the stored ones and return them all, [B, G, length + T, d]."""
        end = self.length + k_BGTd.shape[2]
        self.k[layer, :, :, self.length : end] = k_BGTd
        self.v[layer, :, :, self.length : end] = v_BGTd
        return self.k[layer, :, :, :end], self.v[layer, :, :, :end]

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
        self.length = 0
