"""One state_dict for all: canonical names and shapes, seeded values with power, and strict checking.

Canonical names are Hugging Face's. A tied model has no lm_head.weight; every loader binds its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor

from reference_impl import LlamaConfig
from reference_impl.rope import to_adjacent, to_half_split

Regime = Literal["loud", "quiet", "outlier"]
REGIMES: tuple[Regime, ...] = ("loud", "quiet", "outlier")


def expected_shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a config, in the order of the model."""
    c = config
    q_rows = c.num_attention_heads * c.head_dim
    kv_rows = c.num_key_value_heads * c.head_dim
    linears = {
        "self_attn.q_proj": (q_rows, c.hidden_size),
        "self_attn.k_proj": (kv_rows, c.hidden_size),
        "self_attn.v_proj": (kv_rows, c.hidden_size),
        "self_attn.o_proj": (c.hidden_size, q_rows),
        "mlp.gate_proj": (c.intermediate_size, c.hidden_size),
        "mlp.up_proj": (c.intermediate_size, c.hidden_size),
        "mlp.down_proj": (c.hidden_size, c.intermediate_size),
    }
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (c.vocab_size, c.hidden_size)}
    for layer in range(c.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        shapes[f"{prefix}input_layernorm.weight"] = (c.hidden_size,)
        shapes[f"{prefix}post_attention_layernorm.weight"] = (c.hidden_size,)
        for name, shape in linears.items():
            shapes[f"{prefix}{name}.weight"] = shape
            if c.attention_bias if name.startswith("self_attn") else c.mlp_bias:
                shapes[f"{prefix}{name}.bias"] = shape[:1]
    shapes["model.norm.weight"] = (c.hidden_size,)
    if not c.tie_word_embeddings:
        shapes["lm_head.weight"] = (c.vocab_size, c.hidden_size)
    return shapes


def check_state_dict(config: LlamaConfig, weights: Mapping[str, Tensor]) -> None:
    """Refuse a state_dict that does not fit: nothing is broadcast, guessed or left out.

    Raises:
        ValueError: lists every missing, unexpected and misshapen tensor.
    """
    check_shapes(expected_shapes(config), weights, "the state_dict does")


def check_shapes(shapes: Mapping[str, tuple[int, ...]], tensors: Mapping[str, Tensor], what: str) -> None:
    """Refuse tensors of other names or shapes than are wanted.

    Args:
        shapes: wanted, by name.
        tensors: given, by name.
        what: does not fit, as the message begins: "the state_dict does".

    Raises:
        ValueError: lists every missing, unexpected and misshapen tensor, a dozen of them in full.
    """
    problems = [f"missing {name} {list(shapes[name])}" for name in shapes if name not in tensors]
    problems += [f"unexpected {name} {list(tensors[name].shape)}" for name in tensors if name not in shapes]
    problems += [
        f"{name} has shape {list(tensors[name].shape)}, expected {list(shape)}"
        for name, shape in shapes.items()
        if name in tensors and tuple(tensors[name].shape) != shape
    ]
    if problems:
        shown = "; ".join(problems[:12])
        more = f"; and {len(problems) - 12} more" if len(problems) > 12 else ""
        raise ValueError(f"{what} not fit the config: {shown}{more}")


def load_strictly(targets: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """Copy weights into parameters of the same names, comparing shapes and dtypes first.

    Args:
        targets: parameters by name, for instance dict(module.named_parameters()).
        weights: what goes into them.

    Raises:
        ValueError: names, shapes or dtypes differ; nothing has been copied then.
    """
    problems = [f"missing {name}" for name in targets if name not in weights]
    problems += [f"unexpected {name}" for name in weights if name not in targets]
    for name in targets.keys() & weights.keys():
        target, weight = targets[name], weights[name]
        if target.shape != weight.shape:
            problems.append(f"{name} has shape {list(weight.shape)}, expected {list(target.shape)}")
        elif target.dtype != weight.dtype:
            problems.append(f"{name} is {weight.dtype}, expected {target.dtype}")
    if problems:
        raise ValueError(f"the tensors do not fit: {'; '.join(sorted(problems))}")
    with torch.no_grad():
        for name, target in targets.items():
            target.copy_(weights[name])


def make_weights(
    config: LlamaConfig, seed: int, regime: Regime, dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    """Seeded weights in which faults show.

    loud: fan-in scale with q and k twice that: scores of a spread of 4, sharp attention, rotation matters.
    At four times, a spread of 16, nearly every softmax is one-hot and 16-bit errors grow past use.
    quiet: std 0.02, so that norm inputs are small and eps matters.
    outlier: loud, with a few channels of the residual stream 150 times larger, as trained models have:
    their squares overflow float16.
    Norm weights are 1 + 0.3·randn in all of them: a norm whose weight is one cannot show half of its faults.
    Every tensor is drawn anew, so no two layers and no two projections are alike.

    Args:
        config: sizes.
        seed: of the generator.
        regime: see above.
        dtype: the values are drawn in float32, then rounded to it once.

    Returns:
        canonical state_dict.

    Raises:
        ValueError: unknown regime.
    """
    if regime not in REGIMES:
        raise ValueError(f"regime is {regime!r}, expected one of {', '.join(REGIMES)}")
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in expected_shapes(config).items():
        noise = torch.randn(shape, generator=generator)
        if name.endswith("norm.weight"):
            value = 1 + 0.3 * noise
        elif regime == "quiet":
            value = 0.02 * noise
        elif name == "model.embed_tokens.weight":
            value = noise
        elif name.endswith(".bias"):
            value = 0.5 * noise
        else:
            gain = 2.0 if ("q_proj" in name or "k_proj" in name) else 1.0
            value = gain * noise / shape[-1] ** 0.5
        weights[name] = value
    if regime == "outlier":
        channels = torch.randperm(config.hidden_size, generator=generator)[: max(1, config.hidden_size // 24)]
        weights["model.embed_tokens.weight"][:, channels] *= 150
    return {name: value.to(dtype) for name, value in weights.items()}


def permute_jointly(config: LlamaConfig, weights: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
    """The same function with every sum taken in another order.

    The hidden indices are permuted in everything that reads or writes the residual stream, the intermediate
    indices in gate, up and down; logits are unchanged but for rounding.

    Args:
        config: sizes.
        weights: canonical state_dict.
        seed: of the two permutations.
    """
    hidden, intermediate = hidden_order(config, seed), intermediate_order(config, seed)
    rows = {"o_proj": hidden, "down_proj": hidden, "gate_proj": intermediate, "up_proj": intermediate}
    columns = {"down_proj": intermediate, "o_proj": None}
    permuted = {}
    for name, value in weights.items():
        part = name.split(".")[-2]
        if part.endswith("norm"):
            permuted[name] = value[hidden]
            continue
        if part in rows:
            value = value[rows[part]]  # noqa: PLW2901 - the same tensor, rows reordered
        order = columns.get(part, hidden)
        permuted[name] = value if order is None or value.ndim == 1 else value[:, order]
    return permuted


def hidden_order(config: LlamaConfig, seed: int) -> Tensor:
    """The permutation [D] of the residual stream that permute_jointly applies."""
    return torch.randperm(config.hidden_size, generator=torch.Generator().manual_seed(seed))


def intermediate_order(config: LlamaConfig, seed: int) -> Tensor:
    """The permutation [F] of the gated width that permute_jointly applies."""
    return torch.randperm(config.intermediate_size, generator=torch.Generator().manual_seed(seed + 1))


def adjacent_rows(config: LlamaConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same function for who rotates adjacent pairs: rows of q permuted by H heads, of k by G.

    Args:
        config: sizes.
        weights: canonical state_dict; biases move with their rows.
    """
    return _rows(config, weights, to_adjacent)


def half_split_rows(config: LlamaConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of adjacent_rows."""
    return _rows(config, weights, to_half_split)


def _rows(
    config: LlamaConfig, weights: Mapping[str, Tensor], order: Callable[[Tensor, int], Tensor]
) -> dict[str, Tensor]:
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    return {
        name: order(value, heads[part]) if (part := name.split(".")[-2]) in heads else value
        for name, value in weights.items()
    }
