"""The gate of the feed-forward network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    from reference_impl.ops import Ops


def act(z: Tensor, kind: str) -> Tensor:
    """The activation of the config: silu is z · σ(z), gelu is z · Φ(z), exact or by tanh.

    It is no probability: its minimum is about −0.2785, and it grows like z.

    Source: Ramachandran et al. 2017, arXiv 1710.05941; Hendrycks and Gimpel 2016, arXiv 1606.08415.
    """
    if kind == "silu":
        return functional.silu(z)
    return functional.gelu(z, approximate="tanh" if kind == "gelu_pytorch_tanh" else "none")


def gated(gate: Tensor, up: Tensor, kind: str, ops: Ops) -> Tensor:
    """act(gate) ⊙ up: the two are not exchangeable.

    Args:
        gate, up: [..., F].
        kind: activation of the config.

    Source: Shazeer 2020, arXiv 2002.05202, eq. 5.
    """
    return ops.act(gate, kind) * up
