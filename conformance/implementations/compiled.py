"""flex_attention: a kernel that is compiled for every shape, for seconds.

Shape suffixes: B batch, T tokens, S keys, H query heads, G kv heads, d head width.
"""

# ruff: noqa: PLC0415 - importing the compiler takes seconds: only who uses it pays

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from conformance.implementations.base import Unsupported


def flex_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """torch's own, compiled, under a block mask; as Implementation.attention_core."""
    from torch.nn.attention.flex_attention import flex_attention as upstream

    def attend(block_mask: Any) -> Tensor:
        kernel = torch.compile(upstream, dynamic=False)
        y: Tensor = kernel(q, k, v, block_mask=block_mask, scale=scale, enable_gqa=True)
        return y

    return by_a_kernel(attend, mask)


def by_a_kernel(attend: Callable[[Any], Tensor], mask: Tensor) -> Tensor:
    """What flex_attention gives under a block mask, if it was compiled.

    Args:
        attend: calls it with the block mask.
        mask: [T, S] bool, True = attend.

    Raises:
        Unsupported: it fell back to what is not compiled, or there is no compiler: that is another function.
    """
    from torch._dynamo import config
    from torch._dynamo.exc import FailOnRecompileLimitHit
    from torch._inductor.exc import InductorError
    from torch.nn.attention.flex_attention import create_block_mask

    def seen(_b: Tensor, _h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return mask[query, key]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the compiler's own modules
        block_mask = create_block_mask(
            seen, None, None, mask.shape[0], mask.shape[1], device=str(mask.device)
        )
        try:
            # Shapes that are taken to vary give a kernel for a CPU that its compiler refuses (torch 2.13).
            with config.patch(fail_on_recompile_limit_hit=True, automatic_dynamic_shapes=False):
                return attend(block_mask)
        except (FailOnRecompileLimitHit, InductorError) as error:
            words = str(error).partition("\n")[0]
            raise Unsupported(f"flex_attention was not compiled ({type(error).__name__}: {words})") from error
