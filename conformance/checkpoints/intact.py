"""Whether what was read is whole: fits its config, is finite; and what to do about a file that is not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from conformance.weights import check_state_dict
from reference_impl import LlamaConfig

LFS_POINTER = b"version https://git-lfs"


def how_to_mend(path: Path) -> str:
    """What to do about a damaged file."""
    with path.open("rb") as file:
        pointer = file.read(len(LFS_POINTER)) == LFS_POINTER
    return "it is a Git LFS pointer, run git lfs pull" if pointer else "fetch it again"


def require_fit(config: LlamaConfig, weights: Mapping[str, Tensor]) -> None:
    """check_state_dict, for configs that come from a file.

    Raises:
        ValueError: lists the missing, unexpected and misshapen tensors.
    """
    # A damaged size may be billions, and every tensor that such a model would have would be listed.
    if config.num_hidden_layers > len(weights):
        raise ValueError(
            f"{len(weights)} tensors cannot be the {config.num_hidden_layers} layers that the config asks "
            "for; one of the two is damaged or of another model"
        )
    check_state_dict(config, weights)


def require_finite(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Refuse weights that no model was trained to.

    Raises:
        ValueError: names the first tensor that holds NaN or infinity.
    """
    for name, value in weights.items():
        # A sum costs a tenth of looking at every element; only an overflowing one needs the look.
        if not value.sum(dtype=torch.float32).isfinite() and not value.isfinite().all():
            raise ValueError(f"{path}: {name} holds NaN or infinity; the file is damaged, fetch it again")
