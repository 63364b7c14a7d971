"""Weights to and from the formats in which Llamas are kept: names, fused tensors, order of rows.

A format has a name of FORMATS. Nothing is guessed, broadcast or cast: what does not fit is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from conformance.weight_maps.names import EMBEDDING, FORMATS, HEAD, canonical_names, named, own_name, unheld
from conformance.weights import (
    adjacent_rows,
    check_shapes,
    check_state_dict,
    expected_shapes,
    half_split_rows,
)
from reference_impl import LlamaConfig

__all__ = [
    "FORMATS",
    "canonical_names",
    "format_shapes",
    "formats_of",
    "from_format",
    "own_name",
    "renamed",
    "to_format",
]


def formats_of(config: LlamaConfig) -> tuple[str, ...]:
    """The formats that can hold the weights of a config: not all have names for biases."""
    return tuple(name for name in FORMATS if not unheld(name, config))


def format_shapes(format_name: str, config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a config in a format, in the order of the model.

    Raises:
        ValueError: unknown format, or one that cannot hold such weights.
    """
    shapes = expected_shapes(config)
    return {
        own: (sum(shapes[name][0] for name in names), *shapes[names[0]][1:])
        for own, names in _layout(format_name, config).items()
    }


def to_format(format_name: str, config: LlamaConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Canonical weights as a format has them.

    Args:
        format_name: one of FORMATS.
        config: sizes.
        weights: canonical state_dict; tensors that need no change are passed on as they are, not copied.

    Returns:
        the format's own names and tensors, in the dtypes given.

    Raises:
        ValueError: unknown format, or one that cannot hold such weights; missing, unexpected and misshapen
            tensors, each listed (q, k and v before they are fused); parts of one tensor of several dtypes.
    """
    layout = _layout(format_name, config)
    check_state_dict(config, weights)
    given = adjacent_rows(config, weights) if named(format_name).adjacent else weights
    return {own: _fused(own, {name: given[name] for name in names}) for own, names in layout.items()}


def from_format(format_name: str, config: LlamaConfig, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The canonical weights of what a format has; the inverse of to_format, to the bit.

    Args:
        format_name: one of FORMATS.
        config: sizes; with other head counts most tensors still fit, and the result is wrong.
        tensors: the format's own names.

    Returns:
        canonical state_dict, in the dtypes given.

    Raises:
        ValueError: unknown format, or one that cannot hold such weights; missing, unexpected and misshapen
            tensors, each listed by its name in the format; a tied unembedding that is not the embedding.
    """
    weights = renamed(format_name, config, tensors)
    return half_split_rows(config, weights) if named(format_name).adjacent else weights


def renamed(format_name: str, config: LlamaConfig, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """As from_format, but the rows of q and k stay in the format's own order of pairs."""
    layout, shapes = _layout(format_name, config), expected_shapes(config)
    check_shapes(format_shapes(format_name, config), tensors, f"the {format_name} tensors do")
    weights: dict[str, Tensor] = {}
    for own, names in layout.items():
        if names == (EMBEDDING,) and EMBEDDING in weights:
            _require_tied(own, tensors[own], own_name(format_name, EMBEDDING), weights[EMBEDDING])
        elif len(names) == 1:
            weights[names[0]] = tensors[own]
        else:  # copies, so that a part can be kept or written without the rest
            parts = torch.split(tensors[own], [shapes[name][0] for name in names])
            weights |= {name: part.clone() for name, part in zip(names, parts, strict=True)}
    return {name: weights[name] for name in shapes}


def _layout(format_name: str, config: LlamaConfig) -> dict[str, tuple[str, ...]]:
    """Own name → the canonical tensors in it; the embedding is in two, where a tied head is kept."""
    if not isinstance(config, LlamaConfig):
        raise ValueError(  # noqa: TRY004 - bad input is a ValueError throughout
            f"the config is {type(config).__module__}.{type(config).__name__}, expected "
            "reference_impl.LlamaConfig; conformance.config_from_hf(config.to_dict()) makes one of a "
            "transformers config"
        )
    why = unheld(format_name, config)
    if why:
        raise ValueError(f"{why}; formats that hold such weights are {', '.join(formats_of(config))}")
    names = [own_name(format_name, name) for name in expected_shapes(config)]
    layout = {own: canonical_names(format_name, own) for own in names}
    if config.tie_word_embeddings and named(format_name).tied_head:
        layout[own_name(format_name, HEAD)] = (EMBEDDING,)
    return layout


def _fused(own: str, parts: Mapping[str, Tensor]) -> Tensor:
    """One tensor of several, their rows one after another."""
    if len({part.dtype for part in parts.values()}) > 1:
        found = ", ".join(f"{name} {part.dtype}" for name, part in parts.items())
        raise ValueError(f"{own} is one tensor of one dtype, got {found}; cast them first")
    return torch.cat(list(parts.values())) if len(parts) > 1 else next(iter(parts.values()))


def _require_tied(own: str, head: Tensor, embedding_name: str, embedding: Tensor) -> None:
    if head.dtype != embedding.dtype or not torch.equal(head, embedding):
        raise ValueError(
            f"{own} differs from {embedding_name}, to which the config ties it; "
            "give the embedding under both names, or set tie_word_embeddings to False"
        )
