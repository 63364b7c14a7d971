"""Taps of a user's torch.nn.Module by a table: which module's output, or input, is which tap.

    TAPS = {
        "layers.{i}.attn_norm": "model.layers.{i}.input_layernorm",
        "layers.{i}.attention": "model.layers.{i}.self_attn.o_proj:input",
        "layers.{i}.mlp_residual": "model.layers.{i}",
        "logits": "lm_head",
    }

"{i}" is spelt out for every layer. A few are enough: what lies between two taps is judged as one step.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from conformance.implementations import modules
from conformance.implementations.base import Show
from reference_impl import LlamaConfig

OF_A_LAYER = (
    "attn_norm",
    "q",
    "k",
    "v",
    "q_rot",
    "k_rot",
    "attention",
    "attn_out",
    "attn_residual",
    "mlp_norm",
    "gate",
    "up",
    "gated",
    "mlp_out",
    "mlp_residual",
)
NAMES = ("embedding", *(f"layers.{{i}}.{name}" for name in OF_A_LAYER), "final_norm", "logits")
HEADS = ("q", "k", "v", "q_rot", "k_rot")
INPUT = ":input"


def watch(
    module: nn.Module, table: Mapping[str, str], config: LlamaConfig, tokens_BT: Tensor, show: Show
) -> None:
    """Run the module and show what its modules are given and give.

    Args:
        module: called with the tokens.
        table: tap, with "{i}" for the layer → path of a module, with ":input" behind it where what it is
            given is meant and not what it gives.
        config: how many layers, and how wide the heads, into which [B, T, heads · d] is split.
        tokens_BT: token ids.
        show: see Model.watch.

    Raises:
        ValueError: a tap of another name, or a path that leads to no module.
    """
    outputs, inputs = spelt_out(module, table, config.num_hidden_layers)

    def shown(tap: str, value: Tensor) -> None:
        given = value[0] if isinstance(value, tuple) else value
        flat = tap.rpartition(".")[2] in HEADS and given.ndim == 3
        show(tap, modules.split_heads(given, config.head_dim) if flat else given)

    with modules.watching(module, shown, inputs=inputs, outputs=outputs):
        module(tokens_BT)


def spelt_out(
    module: nn.Module, table: Mapping[str, str], layers: int
) -> tuple[dict[str, str], dict[str, str]]:
    """The table for so many layers: module path → tap, of outputs and of inputs."""
    unknown = [tap for tap in table if tap not in NAMES]
    if unknown:
        raise ValueError(f"TAPS has {', '.join(unknown)}; taps are {', '.join(NAMES)}")
    outputs: dict[str, str] = {}
    inputs: dict[str, str] = {}
    for tap, place in table.items():
        path, chosen = (place.removesuffix(INPUT), inputs) if place.endswith(INPUT) else (place, outputs)
        for i in range(layers) if "{i}" in tap else (0,):
            name, own = tap.replace("{i}", str(i)), path.replace("{i}", str(i))
            try:
                module.get_submodule(own)
            except AttributeError as error:
                raise ValueError(
                    f"TAPS says {tap} is at {place!r}, and {own!r} is no module: {error}"
                ) from error
            chosen[own] = name
    return outputs, inputs
