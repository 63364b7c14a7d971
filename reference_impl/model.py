"""The whole model: embedding, layers, final norm, unembedding.

What departs from GPT: RMSNorm instead of LayerNorm, no biases, a gated MLP, rotation of q and k instead of
learned positions, fewer kv heads than query heads, often no tying of the unembedding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor
from torch.nn import functional

from reference_impl.block import Step, Tap, no_tap
from reference_impl.cache import KVCache, WindowCache
from reference_impl.norm import statistic_dtype
from reference_impl.ops import Ops

if TYPE_CHECKING:
    from reference_impl.config import LlamaConfig

Angles = Literal["contract", "exact"]


class Llama:
    """A Llama as a function of its weights: tokens [B, T] → logits [B, T, V].

    It computes in the dtype it is given. In float64 nothing is rounded to float32 on the way but the
    angles, and those only under "contract": so it can be the oracle.

    Args:
        config: sizes and constants.
        weights: Hugging Face names ("model.layers.0.self_attn.q_proj.weight"); cast to dtype. A tied model
            takes its unembedding from the embedding and needs no lm_head.weight.
        ops: the primitive functions.
        dtype: float32, float64, bfloat16 or float16.
        angles: "contract" computes position · inv_freq in float32, as every released model does; "exact" in
            the working dtype.
    """

    def __init__(
        self,
        config: LlamaConfig,
        weights: Mapping[str, Tensor],
        *,
        ops: Ops | None = None,
        dtype: torch.dtype = torch.float32,
        angles: Angles = "contract",
    ) -> None:
        self.config = config
        self.ops = ops or Ops()
        self.dtype = dtype
        self.weights = {name: value.to(dtype) for name, value in weights.items()}
        self.layers = [self._layer(i) for i in range(config.num_hidden_layers)]
        angle_dtype = torch.float32 if angles == "contract" else dtype
        self.inv_freq = self.ops.inv_freq(config.rope, config.head_dim, angle_dtype)

    def _layer(self, index: int) -> dict[str, Tensor]:
        prefix = f"model.layers.{index}."
        return {n.removeprefix(prefix): w for n, w in self.weights.items() if n.startswith(prefix)}

    def new_cache(self, batch: int, capacity: int) -> KVCache:
        """An empty cache for this model; it keeps no more than a sliding window needs."""
        kind = KVCache if self.config.sliding_window is None else WindowCache
        return kind(self.config, batch, capacity, self.dtype)

    def mask(self, queries: int, keys: int, device: torch.device | None = None) -> Tensor:
        """Which of the last `keys` keys each of the last `queries` queries sees; [T, S] bool."""
        mask, window = self.ops.mask(queries, keys, device), self.config.sliding_window
        return mask if window is None else mask & self.ops.window(queries, keys, window, device)

    def step(
        self,
        layer: int,
        positions: Tensor,
        mask: Tensor | None,
        cache: KVCache | None = None,
        tap: Tap = no_tap,
    ) -> Step:
        """What layer needs besides its input: tables for the positions [T] or [B, T], mask, cache, tap."""
        cos, sin = self.ops.tables(self.inv_freq, positions, self.dtype)
        if positions.ndim == 2:  # one axis for the heads
            cos, sin = cos[:, None], sin[:, None]
        return Step(
            config=self.config,
            ops=self.ops,
            layer=layer,
            cos=cos,
            sin=sin,
            mask=mask,
            cache=cache,
            tap=tap,
        )

    def __call__(
        self,
        tokens_BT: Tensor,
        *,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        real: Tensor | None = None,
        cache: KVCache | None = None,
        tap: Tap = no_tap,
    ) -> Tensor:
        """Logits of every token.

        Args:
            tokens_BT: token ids.
            positions: [T] or [B, T]; the tokens processed so far and onwards where not given.
            mask: bool, True = attend, broadcast against [B, 1, T, S]; causal where not given, within the
                sliding window where there is one.
            real: [B, T] bool, False = padding, which nobody sees and which takes no position; all real where
                not given. The logits of padding mean nothing.
            cache: earlier tokens; the new ones are added to it.
            tap: is shown "embedding", "layers.{i}.{arrow}", "final_norm", "logits".

        Returns:
            [B, T, V] in the model's dtype.

        Raises:
            ValueError: the cache has no room for T more tokens.
        """
        tokens = tokens_BT.shape[1]
        past, kept, seen = 0, 0, real
        processed = torch.zeros(len(tokens_BT), dtype=torch.int64, device=tokens_BT.device)
        if cache is not None:
            cache.require_room(tokens)
            past, kept, processed = cache.length, cache.kept, cache.processed
            seen = cache.remember(tokens, real)
        if positions is None and seen is not None:
            positions = self.ops.padded_positions(processed, seen[:, kept:])
        elif positions is None:
            positions = self.ops.positions(past, tokens, tokens_BT.device)
        if mask is None:
            mask = self.mask(tokens, kept + tokens, tokens_BT.device)
            mask = mask if seen is None else self.ops.hide_padding(mask, seen)
        x_BTD = functional.embedding(tokens_BT, self.weights["model.embed_tokens.weight"])
        tap("embedding", x_BTD)
        for layer, weights in enumerate(self.layers):
            x_BTD = self.ops.block(x_BTD, weights, self.step(layer, positions, mask, cache, tap))
        if cache is not None:
            cache.advance(tokens)
        return self.unembed(x_BTD, tap)

    def unembed(self, x_BTD: Tensor, tap: Tap = no_tap) -> Tensor:
        """Final norm, then the unembedding (the embedding itself where they are tied)."""
        x_BTD = self.ops.rms_norm(x_BTD, self.weights["model.norm.weight"], self.config.rms_norm_eps)
        tap("final_norm", x_BTD)
        tied = self.config.tie_word_embeddings
        head = self.weights["model.embed_tokens.weight" if tied else "lm_head.weight"]
        logits = self.ops.linear(x_BTD, head, None)
        tap("logits", logits)
        return logits


def loss(logits_BTV: Tensor, tokens_BT: Tensor) -> Tensor:
    """Mean cross-entropy of predicting each token from those before it: logits t against token t + 1.

    Args:
        logits_BTV: of the tokens themselves, unshifted.
        tokens_BT: int64; T ≥ 2.

    Returns:
        a scalar, in float32 at least: a 16-bit sum over [B·T, V] would be worth little.

    Source: transformers loss/loss_utils.py, ForCausalLMLoss.
    """
    predicted = logits_BTV[:, :-1].flatten(0, 1).to(statistic_dtype(logits_BTV.dtype))
    return functional.cross_entropy(predicted, tokens_BT[:, 1:].flatten())
