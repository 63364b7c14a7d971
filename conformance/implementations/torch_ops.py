"""The ops that torch itself ships: what a Llama written today calls."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from conformance.implementations import compiled
from conformance.implementations.base import Attend, Implementation


class TorchOps(Implementation):
    """torch.nn.RMSNorm, functional.silu, functional.scaled_dot_product_attention; no rotation, no model."""

    name = "torch"
    packages = ("torch",)
    module = "torch"

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """torch.nn.RMSNorm, with the weight put into the module."""
        norm = nn.RMSNorm(x.shape[-1], eps=eps)
        y: Tensor = torch.func.functional_call(norm, {"weight": weight}, (x,))
        return y

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        """functional.silu, times up."""
        return functional.silu(gate) * up

    def attention_core(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
        """functional.scaled_dot_product_attention, which expands the kv heads itself."""
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True)

    def attention_cores(self) -> dict[str, Attend]:
        """scaled_dot_product_attention under each backend that a CPU has."""
        return {"math": self._under(SDPBackend.MATH), "flash": self._under(SDPBackend.FLASH_ATTENTION)}

    def compiled_attention_core(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
        """flex_attention."""
        return compiled.flex_attention(q, k, v, mask, scale)

    def _under(self, backend: SDPBackend) -> Attend:
        def core(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
            with sdpa_kernel(backend):
                return self.attention_core(q, k, v, mask, scale)

        return core
