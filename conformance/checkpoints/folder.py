"""A Hugging Face folder: config.json, safetensors (one file or shards with an index), tokenizer.json."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from conformance.checkpoints.config_json import config_from_hf, config_to_hf
from conformance.checkpoints.intact import how_to_mend, require_fit
from conformance.weights import check_state_dict

if TYPE_CHECKING:
    from conformance.checkpoints.tokenizer import Tokenizer
    from reference_impl import LlamaConfig

CONFIG, SINGLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth")
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
# A buffer that early releases stored; it follows from config.json, and every loader computes it anew.
STORED_BUFFER = ".rotary_emb.inv_freq"

Notes = tuple[str, ...]


def read_folder(folder: Path) -> tuple[LlamaConfig, dict[str, Tensor], Tokenizer | None, Notes]:
    """Config, canonical weights in the stored dtypes, tokenizer, and what was left aside.

    Raises:
        ValueError: names the file, and the tensor where there is one, and says what to do.
    """
    from conformance.checkpoints import tokenizer  # noqa: PLC0415 - its library is an extra

    config = read_config(folder)
    path = folder / SINGLE
    if path.is_file():
        tensors = dict(read_tensors(path))
    elif (folder / INDEX).is_file():
        path = folder / INDEX
        tensors = read_shards(folder)
    else:
        raise ValueError(no_weights(folder))
    try:
        weights, notes = canonical(config, tensors)
        require_fit(config, weights)
    except ValueError as error:
        raise ValueError(f"{path}: {error}; is {CONFIG} of another model?") from error
    reader, why = tokenizer.from_folder(folder)
    return config, weights, reader, (*notes, *why)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of a file.

    Raises:
        ValueError: it cannot be parsed, or is no object.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # also what is no UTF-8
        raise ValueError(f"{path}: no valid JSON ({error}); {how_to_mend(path)}") from error
    if not isinstance(data, dict):
        raise ValueError(f"{path}: a JSON {type(data).__name__}, expected an object")  # noqa: TRY004
    return data


def read_config(folder: Path) -> LlamaConfig:
    """The canonical config of the folder's config.json."""
    path = folder / CONFIG
    if not path.is_file():
        ggufs = sorted(file.name for file in folder.glob("*.gguf"))
        hint = f"; name one of its GGUF files instead: {', '.join(ggufs)}" if ggufs else ""
        raise ValueError(f"{folder}: no {CONFIG}, expected a Hugging Face folder{hint}")
    data = read_json(path)
    try:
        return config_from_hf(data)
    except (ValueError, TypeError) as error:  # TypeError: a string where a number belongs
        raise ValueError(f"{path}: {error}") from error


def no_weights(folder: Path) -> str:
    """Why nothing can be read from a folder without safetensors."""
    files = sorted(p.name for p in folder.iterdir() if p.suffix in (*PICKLES, ".safetensors"))
    if any(name.endswith(PICKLES) for name in files):
        return (
            f"{folder}: its weights are pickled ({', '.join(files)}), and unpickling runs whatever code the "
            f"file holds; save the model as {SINGLE} (save_pretrained does)"
        )
    return f"{folder}: neither {SINGLE} nor {INDEX}; found {', '.join(files) or 'no weights at all'}"


def read_tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of one safetensors file.

    Raises:
        ValueError: the file is cut off or corrupt, or a tensor is no plain float.
    """
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                tensor = file.get_tensor(name)
                if tensor.dtype not in DTYPES:
                    raise ValueError(
                        f"{path}: {name} is stored as {tensor.dtype}, expected one of "
                        f"{', '.join(map(str, DTYPES))}; use the unquantised checkpoint"
                    )
                yield name, tensor
    except SafetensorError as error:
        raise ValueError(f"{path}: {error}{first_cut_off(path)}; {how_to_mend(path)}") from error


def first_cut_off(path: Path) -> str:
    """Which tensor a truncated file ends in, "" where its header does not tell."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
        if size < start:
            return f"; the file ends at byte {size}, inside its header"
        header = file.read(start - 8)
    try:
        ends = {
            name: start + info["data_offsets"][1]
            for name, info in json.loads(header).items()
            if name != "__metadata__"
        }
    except (ValueError, TypeError, KeyError, IndexError):
        return "; its header is damaged"
    cut = [name for name, end in sorted(ends.items(), key=lambda item: item[1]) if end > size]
    return f"; the file ends at byte {size} of {max(ends.values())}, inside {cut[0]}" if cut else ""


def read_shards(folder: Path) -> dict[str, Tensor]:
    """The tensors of a sharded checkpoint, each from the shard that the index names.

    Raises:
        ValueError: a shard is missing, or index and shards disagree.
    """
    index = folder / INDEX
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(s, str) for s in weight_map.values()):
        raise ValueError(f"{index}: no weight_map from tensor names to file names; fetch it again")
    tensors: dict[str, Tensor] = {}
    for shard in sorted(set(weight_map.values())):
        named = {name for name, file in weight_map.items() if file == shard}
        if Path(shard).name != shard or not (folder / shard).is_file():
            raise ValueError(f"{index}: shard {shard} is not in {folder}; it holds {min(named)}; fetch it")
        found = dict(read_tensors(folder / shard))
        lacking, extra = sorted(named - set(found)), sorted(set(found) - named)
        if lacking:
            raise ValueError(f"{folder / shard}: lacks {lacking[0]}, which {INDEX} says it holds")
        if extra:
            raise ValueError(f"{folder / shard}: holds {extra[0]}, which {INDEX} does not place there")
        tensors |= found
    return tensors


def canonical(config: LlamaConfig, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Notes]:
    """Leave aside what follows from the rest: stored buffers and the second copy of a tied embedding.

    Raises:
        ValueError: the config ties a head that differs from the embedding.
    """
    notes = []
    weights = {name: value for name, value in tensors.items() if not name.endswith(STORED_BUFFER)}
    if len(weights) < len(tensors):
        notes.append(f"{len(tensors) - len(weights)} stored inv_freq buffers ignored; config.json decides")
    if config.tie_word_embeddings and "lm_head.weight" in weights:
        head, embedding = weights.pop("lm_head.weight"), weights.get("model.embed_tokens.weight")
        if embedding is None or not torch.equal(head, embedding):
            raise ValueError(
                f"{CONFIG} ties the embeddings, but lm_head.weight is not model.embed_tokens.weight; "
                "set tie_word_embeddings to false, or remove the tensor"
            )
        notes.append("lm_head.weight ignored; it is the tied embedding's copy")
    return weights, tuple(notes)


def write_folder(
    folder: Path, config: LlamaConfig, weights: Mapping[str, Tensor], *, shards: int = 1
) -> Path:
    """Write a folder that read_folder and transformers read: config.json and safetensors.

    Args:
        folder: made if absent.
        config: canonical config.
        weights: canonical state_dict.
        shards: number of files; with more than one an index is written.

    Returns:
        folder.

    Raises:
        ValueError: the weights do not fit the config, or there are fewer of them than shards.
    """
    check_state_dict(config, weights)
    if not 1 <= shards <= len(weights):
        raise ValueError(f"shards is {shards}, expected 1 to {len(weights)}, the number of tensors")
    folder.mkdir(parents=True, exist_ok=True)
    dtype = str(next(iter(weights.values())).dtype).removeprefix("torch.")
    text = json.dumps({**config_to_hf(config), "dtype": dtype}, indent=2)
    (folder / CONFIG).write_text(text, encoding="utf-8")
    names = list(weights)
    files = (
        [SINGLE] if shards == 1 else [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    )
    weight_map = {name: files[i * shards // len(names)] for i, name in enumerate(names)}
    for file in files:
        part = {n: weights[n].detach().cpu().contiguous() for n in names if weight_map[n] == file}
        save_file(part, folder / file, metadata={"format": "pt"})
    if shards > 1:
        total = sum(value.nbytes for value in weights.values())
        content = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / INDEX).write_text(json.dumps(content, indent=2), encoding="utf-8")
    return folder
