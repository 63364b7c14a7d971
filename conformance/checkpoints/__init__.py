"""Trained checkpoints: a name, a folder or a file in; canonical config, weights and tokenizer out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.checkpoints.builtin import BUILTIN, NotInstalledError, resolve

if TYPE_CHECKING:
    from torch import Tensor

    from conformance.checkpoints.tokenizer import Tokenizer
    from reference_impl import LlamaConfig

__all__ = ["BUILTIN", "Checkpoint", "NotInstalledError", "load", "resolve"]


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A trained model in canonical form.

    Args:
        name: as the user typed it.
        config: canonical config.
        weights: canonical state_dict; dequantised to float32 from a GGUF file, in the stored dtypes from a
            folder.
        tokenizer: None where the checkpoint has none that can be read.
        source: folder or file it was read from.
        notes: what was left aside or could not be read, and why.
    """

    name: str
    config: LlamaConfig
    weights: dict[str, Tensor]
    tokenizer: Tokenizer | None
    source: Path
    notes: tuple[str, ...] = ()


def load(name_or_dir: str) -> Checkpoint:
    """Read a checkpoint: a built-in name, a Hugging Face folder, or a GGUF file.

    Args:
        name_or_dir: see resolve.

    Returns:
        weights that fit the config name by name and shape by shape, and are finite.

    Raises:
        NotInstalledError: a package is missing; it carries the line that installs it.
        ValueError: the checkpoint is not a Llama's, or is damaged; names file and tensor.
    """
    # Heavy libraries come in here, so that asking for names and places costs nothing.
    from conformance.checkpoints import folder, gguf_file, intact  # noqa: PLC0415

    source = resolve(name_or_dir)
    read = folder.read_folder if source.is_dir() else gguf_file.read_gguf
    config, weights, tokenizer, notes = read(source)
    intact.require_finite(source, weights)
    return Checkpoint(
        name=name_or_dir, config=config, weights=weights, tokenizer=tokenizer, source=source, notes=notes
    )
