"""What an implementation is: a set of capabilities, each a method; not overridden means not offered.

Shape suffixes: B batch, T tokens, S keys, D hidden, H query heads, G kv heads, d head width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from reference_impl import LlamaConfig

OP_CAPABILITIES = (
    "rms_norm",
    "silu_mul",
    "rope_tables",
    "apply_rope",
    "attention_core",
    "apply_rope_adjacent",
    "attention_cores",
    "additive_attention_core",
    "json_rope_tables",
    "ffn_width",
)

Show = Callable[[str, Tensor], None]
Attend = Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor]


class Unsupported(Exception):  # noqa: N818 - not an error: an answer
    """The implementation does not offer a capability, or not for this config; says why."""


def not_offered(capability: str) -> Unsupported:
    """The answer of every method that is not overridden."""
    return Unsupported(f"does not offer {capability}")


@dataclass(frozen=True, kw_only=True)
class Held:
    """A tensor that a built model keeps.

    Args:
        name: the implementation's own; one tensor may be held under two names.
        tensor: itself, not a copy.
        kind: a "parameter" is trained, a "buffer" is not.
        saved: whether it is in the state_dict.
    """

    name: str
    tensor: Tensor
    kind: Literal["parameter", "buffer"]
    saved: bool


class Model:
    """One built model of an implementation: a config and its weights, in the weights' dtype, in eval mode.

    Built models are reused between cases, so no method may leave anything behind that another call sees:
    what a step needs to remember lives in the cache object it is given.
    """

    def logits(
        self, tokens_BT: Tensor, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Logits [B, T, V] of a full causal forward pass, in the model's dtype.

        Args:
            tokens_BT: token ids, int64.
            positions: [T] or [B, T] position ids; 0 … T−1 where None, or counted over the real tokens.
            mask: bool. [B, T]: True = a real token, False = padding, which nobody sees and whose own logits
                mean nothing. [B, T, T]: True = query t sees key s, future and other documents excluded.
        """
        raise not_offered("logits")

    def cache_kinds(self) -> tuple[str, ...]:
        """The kinds of KV cache it has, by the names that new_cache takes; the usual one first."""
        return ("",)

    def new_cache(self, batch: int, capacity: int, kind: str = "") -> Any:
        """The implementation's own empty KV cache for up to capacity tokens, of the usual kind where ""."""
        raise not_offered("cache")

    def step(self, tokens_BT: Tensor, cache: Any) -> Tensor:
        """Logits [B, T, V] of the next T tokens, which are added to the cache; T = 1 is a decode step.

        Raises:
            Exception: they do not fit; the cache then holds what it held.
        """
        raise not_offered("cache")

    def prefill(self, tokens_BT: Tensor, cache: Any, lengths_B: Tensor) -> Tensor:
        """Logits [B, T, V] of prompts of different lengths; each row then goes on at its own.

        Args:
            tokens_BT: the prompts from the left, filler behind them.
            cache: an empty one; step() goes on with it.
            lengths_B: tokens of each prompt; the logits behind them mean nothing.
        """
        raise not_offered("prefill")

    def reset(self, cache: Any) -> None:
        """Empty a cache, to be used again."""
        raise not_offered("reset")

    def crop(self, cache: Any, length: int) -> None:
        """Go back to the first length tokens of every row, as where a draft is not taken.

        Raises:
            Unsupported: what would be needed is no longer stored.
        """
        raise not_offered("crop")

    def reorder(self, cache: Any, rows_B: Tensor) -> None:
        """Row i becomes what row rows[i] was, as beams are reordered."""
        raise not_offered("reorder")

    def attention_module(self, x_BTD: Tensor, positions: Tensor, layer: int) -> Tensor:
        """Causal self-attention of a layer, projections included, on the normed input; [B, T, D].

        Args:
            x_BTD: what the layer's first norm would give.
            positions: [T] position ids.
            layer: index.
        """
        raise not_offered("attention_module")

    def mlp(self, x_BTD: Tensor, layer: int) -> Tensor:
        """Gated feed-forward network of a layer on the normed input; [B, T, D]."""
        raise not_offered("mlp")

    def block(self, x_BTD: Tensor, positions: Tensor, layer: int) -> Tensor:
        """A whole layer on the residual stream; [B, T, D]."""
        raise not_offered("block")

    def watch(self, tokens_BT: Tensor, show: Show) -> None:
        """Run a full forward pass and show its intermediates as they come, so that none need be kept.

        "embedding", "layers.{i}.{attn_norm, q, k, v, q_rot, k_rot, attention, attn_out, attn_residual,
        mlp_norm, gate, up, gated, mlp_out, mlp_residual}", "final_norm", "logits" (reference_impl/block.py);
        q, k, v, q_rot and k_rot are [B, heads, T, d], half-split; attention is [B, T, H·d]. What cannot be
        seen is left out. Whoever looks does not write into what is shown, but a later step may.

        Args:
            tokens_BT: token ids.
            show: is given name and tensor, in causal order.
        """
        raise not_offered("taps")

    def taps(self, tokens_BT: Tensor) -> dict[str, Tensor]:
        """All that watch shows, by name."""
        seen: dict[str, Tensor] = {}
        self.watch(tokens_BT, seen.__setitem__)
        return seen

    def state_dict(self) -> dict[str, Tensor]:
        """The weights it computes with, mapped back to canonical (Hugging Face) names."""
        raise not_offered("state_dict")

    def held(self) -> list[Held]:
        """Every parameter and buffer."""
        raise not_offered("held")

    def cast(self, dtype: torch.dtype) -> Model:
        """The model in another dtype, cast after it was built, as its users cast it; a copy."""
        raise not_offered("cast")

    def reloaded(self, folder: Path) -> Model:
        """A fresh model from what this one saves into a folder, in its own way to save and to load.

        Where it builds on the meta device before it loads, by way of that. The folder is gone afterwards.
        """
        raise not_offered("reloaded")

    def cache_tensors(self, cache: Any) -> list[Tensor]:
        """The very tensors in which a cache keeps keys and values, [B, G, S, d] or several stacked."""
        raise not_offered("cache_tensors")

    def loss(self, tokens_BT: Tensor) -> Tensor:
        """Mean cross-entropy of each token given those before it, a scalar, as its training computes it."""
        raise not_offered("loss")

    def gradients(self, tokens_BT: Tensor) -> list[Tensor]:
        """What a backward pass of the loss leaves behind, a tensor per parameter, on a copy."""
        raise not_offered("gradients")


class Implementation:
    """Something that computes a Llama, or parts of one.

    Class attributes:
        name: as --impl and the records spell it.
        packages: distributions whose versions belong into the record of a run.
        module: the importable module that must be installed, or "" where nothing is needed.
    """

    name: str = ""
    packages: ClassVar[tuple[str, ...]] = ()
    module: ClassVar[str] = ""

    def build(self, config: LlamaConfig, weights: Mapping[str, Tensor]) -> Model:
        """A model of the canonical config with the canonical weights, in their dtype and on their device.

        Args:
            config: canonical config.
            weights: Hugging Face names; lm_head.weight is absent where the config ties it. Not mutated, and
                not aliased by anything that may be written to.

        Raises:
            Unsupported: the library cannot express this config.
            Exception: a missing, unexpected or misshapen tensor; the message names it.
        """
        raise not_offered("logits")

    def formats(self) -> tuple[str, ...]:
        """The formats of conformance.weight_maps whose tensors build_from takes."""
        raise not_offered("formats")

    def build_from(self, format_name: str, config: LlamaConfig, tensors: Mapping[str, Tensor]) -> Model:
        """As build, from the tensors of another format; the model's state_dict() is canonical all the same.

        Args:
            format_name: one of formats().
            config: canonical config.
            tensors: the format's own names; not mutated, and not aliased by anything that may be written to.
        """
        raise not_offered("build_from")

    def own_name(self, canonical: str) -> str:
        """What a tensor is called in the implementation's own messages."""
        return canonical

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """RMSNorm of x [..., n] with weight [n], both of one dtype."""
        raise not_offered("rms_norm")

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        """silu(gate) ⊙ up, both [..., F]."""
        raise not_offered("silu_mul")

    def rope_tables(self, config: LlamaConfig, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin, float32, [T, d] (half tables repeated) or [T, d/2], at positions [T]."""
        raise not_offered("rope_tables")

    def apply_rope(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Rotate q [B, H, T, d] and k [B, G, T, d] by half-split pairs, with tables [T, d] of their dtype."""
        raise not_offered("apply_rope")

    def attention_core(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
        """Attention [B, H, T, d] of q [B, H, T, d] on k, v [B, G, S, d].

        Args:
            q, k, v: rotated queries and keys, values.
            mask: [T, S] or [B, 1, T, S] bool, True = attend.
            scale: of the scores.
        """
        raise not_offered("attention_core")

    def additive_attention_core(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
        """As attention_core, with a mask that is added to the scores: 0 = attend, in the dtype of q."""
        raise not_offered("additive_attention_core")

    def compiled_attention_core(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
        """As attention_core, mask [T, S], by a kernel that is compiled for every shape: seconds each.

        Raises:
            Unsupported: it fell back to something that is not compiled.
        """
        raise not_offered("compiled_attention_core")

    def build_adjacent(self, config: LlamaConfig, weights: Mapping[str, Tensor]) -> Model:
        """As build, for weights whose q and k rows are in Meta's order: adjacent pairs are rotated."""
        raise not_offered("build_adjacent")

    def apply_rope_adjacent(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Rotate q [B, H, T, d] and k [B, G, T, d] by adjacent pairs (2i, 2i+1), with tables [T, d/2]."""
        raise not_offered("apply_rope_adjacent")

    def attention_cores(self) -> dict[str, Attend]:
        """Every attention backend by name, each called as attention_core."""
        raise not_offered("attention_cores")

    def json_rope_tables(self, config_json: dict[str, Any], positions: Tensor) -> tuple[Tensor, Tensor]:
        """As rope_tables, of the frequency rule that a parsed config.json spells."""
        raise not_offered("json_rope_tables")

    def ffn_width(self, hidden_size: int, multiple_of: int, multiplier: float) -> int:
        """The width of the gated network by the rule of Meta's params.json."""
        raise not_offered("ffn_width")

    def capabilities(self) -> tuple[str, ...]:
        """The op capabilities it overrides, and "logits" where it builds models."""
        own = [c for c in OP_CAPABILITIES if getattr(type(self), c) is not getattr(Implementation, c)]
        return (*own, *(["logits"] if type(self).build is not Implementation.build else []))
