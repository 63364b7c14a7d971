"""The attention of transformers: its functions by name, the masks they take, and a watched one.

Shape suffixes: B batch, T tokens.
"""

# ruff: noqa: PLC0415 - importing transformers takes seconds: only who uses it pays

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def attention_function(implementation: str) -> Callable[..., tuple[Tensor, Any]]:
    """The library's attention function of that name, as LlamaAttention looks it up."""
    from transformers.models.llama import modeling_llama as upstream

    found: Callable[..., tuple[Tensor, Any]] = upstream.ALL_ATTENTION_FUNCTIONS.get_interface(
        implementation, upstream.eager_attention_forward
    )
    return found


def for_attention(implementation: str, mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A boolean mask, True = attend, as the library makes masks for its attention of that name.

    The eager one adds them to the scores: 0, and the dtype's lowest number.
    """
    if implementation != "eager":
        return mask
    lowest = torch.finfo(dtype).min
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, lowest)


def register_watched(implementation: str) -> str:
    """Register the library's attention under another name, with a look at what it is given; the name.

    Module hooks cannot see q and k after the rotation; the library's registry of attention functions can be
    added to. Only models whose config asks for the new name are affected, and only taps() makes such.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    attention = attention_function(implementation)

    def watched(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        *given: Any,
        conformance_show: Callable[[str, Tensor], None],
        **named: Any,
    ) -> tuple[Tensor, Any]:
        conformance_show(f"layers.{module.layer_idx}.q_rot", query)
        conformance_show(f"layers.{module.layer_idx}.k_rot", key)
        return attention(module, query, key, *given, **named)

    name = f"conformance-{implementation}"
    AttentionInterface.register(name, watched)
    AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS[implementation])
    return name
