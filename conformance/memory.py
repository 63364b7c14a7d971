"""How much memory a config implies, before anything is built: parameters, gradients, tables, KV cache."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from conformance.weights import expected_shapes
from reference_impl import LlamaConfig


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What a config implies.

    Args:
        parameters: N, the number of trained elements; a tied unembedding is not counted again.
        parameter_bytes: of the parameters in their dtype.
        gradient_bytes: of one gradient a parameter, in the same dtype.
        table_bytes: the most that buffers need, cos and sin of every position in float32.
        cache_bytes: of the keys and values of a batch.
    """

    parameters: int
    parameter_bytes: int
    gradient_bytes: int
    table_bytes: int
    cache_bytes: int


def memory_of(
    config: LlamaConfig, dtype: torch.dtype = torch.bfloat16, *, batch: int = 1, tokens: int | None = None
) -> Memory:
    """How many parameters a config has, and how many bytes they, their gradients and a KV cache take.

    N = V·D (twice, if untied) + L·(2·D + 2·D·d·(H + G) + 3·D·F, and the biases) + D.
    Cache: 2·L·B·G·S·d · bytes of the dtype. Tables: 2·(P + L)·d · 4, with P the longest context; the L rows
    on top are for frequencies that every layer keeps.

    Args:
        config: sizes.
        dtype: of the parameters and of the cache.
        batch: B, sequences in the cache.
        tokens: S, of each sequence; the longest context of the config where None.

    Raises:
        ValueError: batch or tokens is negative.

    Source: Kwon et al. 2023, arXiv 2309.06180, section 3, for the cache.
    """
    c, positions = config, config.max_position_embeddings
    tokens = positions if tokens is None else tokens
    if batch < 0 or tokens < 0:
        raise ValueError(f"batch is {batch} and tokens {tokens}, expected numbers of at least 0")
    parameters = sum(math.prod(shape) for shape in expected_shapes(config).values())
    cached = 2 * c.num_hidden_layers * batch * c.num_key_value_heads * tokens * c.head_dim
    return Memory(
        parameters=parameters,
        parameter_bytes=parameters * dtype.itemsize,
        gradient_bytes=parameters * dtype.itemsize,
        table_bytes=2 * (positions + c.num_hidden_layers) * c.head_dim * torch.float32.itemsize,
        cache_bytes=cached * dtype.itemsize,
    )
