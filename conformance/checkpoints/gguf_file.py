"""A GGUF file of a Llama: dequantised, pair layout undone, tied head bound, config from metadata."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from conformance.checkpoints.builtin import NotInstalledError
from conformance.checkpoints.gguf_header import Header, read_header
from conformance.checkpoints.gguf_rope import DIVISORS, rope_from_gguf, shortest
from conformance.checkpoints.intact import require_fit
from conformance.weight_maps import canonical_names
from conformance.weights import half_split_rows
from reference_impl import LlamaConfig

if TYPE_CHECKING:
    from conformance.checkpoints.tokenizer import Tokenizer

Bytes = npt.NDArray[np.uint8]
INSTALL = "pip install 'llama-conformance[checkpoint]'"


def read_gguf(path: Path) -> tuple[LlamaConfig, dict[str, Tensor], Tokenizer | None, tuple[str, ...]]:
    """Config, canonical float32 weights, tokenizer, and what was left aside.

    Raises:
        NotInstalledError: the gguf package is absent.
        ValueError: truncated or damaged, another architecture, a missing, unexpected or misshapen tensor.
    """
    if find_spec("gguf") is None:
        raise NotInstalledError("the gguf package, which reads GGUF files,", INSTALL)
    from conformance.checkpoints import tokenizer  # noqa: PLC0415 - its library is an extra

    header = read_header(path)
    data = np.memmap(path, mode="r").view(np.ndarray)
    try:
        divisors = dequantised(data, header, DIVISORS) if DIVISORS in header.tensors else None
        config = config_from_gguf(header, divisors)
        weights = weights_from_gguf(data, header, config)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    reader, why = tokenizer.from_gguf(header.metadata)
    return config, weights, reader, why


def weights_from_gguf(data: Bytes, header: Header, config: LlamaConfig) -> dict[str, Tensor]:
    """The canonical state_dict in float32; names and shapes are checked before anything is dequantised."""
    names = {
        canonical: own
        for own in header.tensors
        if own != DIVISORS
        for canonical in canonical_names("gguf", own) or (own,)
    }
    shapes = {name: header.tensors[own].shape for name, own in names.items()}
    require_fit(config, {name: torch.empty(shape, device="meta") for name, shape in shapes.items()})
    return half_split_rows(config, {name: dequantised(data, header, own) for name, own in names.items()})


def dequantised(data: Bytes, header: Header, name: str) -> Tensor:
    """A tensor of the file in float32.

    Raises:
        ValueError: the gguf package cannot dequantise its type.
    """
    from gguf.constants import GGMLQuantizationType  # noqa: PLC0415 - an extra
    from gguf.quants import dequantize  # noqa: PLC0415

    info = header.tensors[name]
    kind = GGMLQuantizationType(info.quantisation)
    rows = data[info.offset : info.offset + info.nbytes].reshape(*info.shape[:-1], -1)
    plain = {GGMLQuantizationType.F32: np.float32, GGMLQuantizationType.F16: np.float16}
    try:
        values = dequantize(rows.view(plain.get(kind, np.uint8)), kind)
    except NotImplementedError as error:
        raise ValueError(f"{name} is {kind.name}, which gguf cannot dequantise; use another file") from error
    # What is stored in float32 comes back as a read-only view of the file: "W" copies that, and only that.
    return torch.from_numpy(np.require(values, np.float32, ["C", "W"]))


def config_from_gguf(header: Header, divisors_P: Tensor | None) -> LlamaConfig:
    """The canonical config of a GGUF file.

    Args:
        header: of the file.
        divisors_P: rope_freqs.weight, or None.

    Raises:
        ValueError: another architecture, a missing key, or something a canonical Llama does not have.
    """
    data, tensors = header.metadata, header.tensors
    require_llama(data)
    heads = uniform(data, "attention.head_count")
    embedding = tensors.get("token_embd.weight")
    if embedding is None:
        raise ValueError("no tensor token_embd.weight; this is no whole model")
    sizes = {
        "vocab_size": data.get("llama.vocab_size", embedding.shape[0]),
        "hidden_size": required(data, "embedding_length"),
        "intermediate_size": uniform(data, "feed_forward_length"),
        "num_hidden_layers": required(data, "block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": uniform(data, "attention.head_count_kv", heads),
        "head_dim": head_width(data, required(data, "embedding_length"), heads),
        "max_position_embeddings": required(data, "context_length"),
    }
    return LlamaConfig(
        **sizes,
        rms_norm_eps=shortest(required(data, "attention.layer_norm_rms_epsilon")),
        rope=rope_from_gguf(data, divisors_P, sizes["head_dim"]),
        tie_word_embeddings="output.weight" not in tensors,
        attention_bias="blk.0.attn_q.bias" in tensors,
        mlp_bias="blk.0.ffn_up.bias" in tensors,
    )


def require_llama(data: Mapping[str, Any]) -> None:
    """Refuse another architecture, a mixture of experts, and one part of a split file.

    Raises:
        ValueError: names what was found.
    """
    architecture = data.get("general.architecture")
    if architecture != "llama":
        raise ValueError(f"general.architecture is {architecture!r}, expected 'llama'")
    if data.get("llama.expert_count", 0):
        raise ValueError(f"a mixture of {data['llama.expert_count']} experts, expected a dense Llama")
    if data.get("split.count", 1) > 1:
        raise ValueError(f"one of {data['split.count']} parts; merge them with llama-gguf-split --merge")


def required(data: Mapping[str, Any], key: str) -> Any:
    """A metadata value that has no default.

    Raises:
        ValueError: the key is absent.
    """
    if f"llama.{key}" not in data:
        raise ValueError(f"metadata lacks llama.{key}; convert the model with a current llama.cpp")
    return data[f"llama.{key}"]


def uniform(data: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """A size that newer files may give layer by layer.

    Raises:
        ValueError: absent, or layers differ.
    """
    value = required(data, key) if default is None else data.get(f"llama.{key}", default)
    values = set(value) if isinstance(value, list) else {value}
    if len(values) != 1:
        raise ValueError(f"llama.{key} differs between layers: {sorted(values)}; expected one size for all")
    return int(values.pop())


def head_width(data: Mapping[str, Any], hidden: int, heads: int) -> int:
    """d, which the rotation must cover and the values must share.

    Raises:
        ValueError: the widths that the file gives are not one.
    """
    keys = ("attention.key_length", "attention.value_length", "rope.dimension_count")
    given = {key: data[f"llama.{key}"] for key in keys if f"llama.{key}" in data}
    widths = set(given.values())
    if len(widths) > 1:
        raise ValueError(f"head widths differ: {given}; the canonical Llama rotates the whole head")
    return int(widths.pop()) if widths else hidden // heads
