"""Dense tensors from a seed and a pattern: the inputs in which faults show; plain noise hides many."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
Pattern = Literal["noise", "outlier", "ties", "one-hot", "constant", "denormal", "rows", "sweep", "zero"]
Layout = Literal["contiguous", "transposed", "sliced", "expanded"]
# Powerful ones first: Hypothesis shrinks towards the front and tries it most.
PATTERNS: tuple[Pattern, ...] = (
    "rows",
    "outlier",
    "ties",
    "one-hot",
    "constant",
    "sweep",
    "denormal",
    "noise",
)


def draw(shape: tuple[int, ...], seed: int, pattern: Pattern, scale: float, dtype: torch.dtype) -> Tensor:
    """A dense tensor from a seed.

    noise: normal. outlier: noise with every 24th channel thirty times larger. rows: noise whose rows differ
    in size by up to 10³ (one loud row would hide a fault on all others). ties: few distinct values.
    one-hot: one element a row, every other zero. constant: every element one. sweep: from −1 to 1 along the
    row. zero: nothing. denormal: noise, a sixteenth of the dtype's smallest normal number.

    Args:
        shape: of the result.
        seed: of the generator.
        pattern: see above.
        scale: the whole is multiplied by it.
        dtype: the values are drawn in float32, then rounded to it once.
    """
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(shape, generator=generator)
    if pattern == "outlier":
        noise[..., ::24] *= 30
    elif pattern == "rows":
        noise *= 10 ** (3 * torch.rand((*shape[:-1], 1), generator=generator) - 2)
    elif pattern == "ties":
        noise = noise.round()
    elif pattern == "one-hot":
        hot = torch.randint(0, shape[-1], (*shape[:-1], 1), generator=generator)
        noise = torch.zeros(shape).scatter(-1, hot, 1.0)
    elif pattern in {"constant", "zero"}:
        noise = torch.full(shape, float(pattern == "constant"))
    elif pattern == "sweep":
        noise = torch.linspace(-1, 1, shape[-1]).expand(shape)
    elif pattern == "denormal":
        return (noise * torch.finfo(dtype).smallest_normal / 16).to(dtype)
    return (noise * scale).to(dtype)


FILLER = 7.0  # beside a slice: a number like any other


def laid_out(tensor: Tensor, layout: Layout) -> Tensor:
    """The tensor as a view of memory in another order; expanded, every row of the batch is the first.

    Args:
        tensor: [B, T, …], or [rows, …].
        layout: contiguous; transposed: the first two axes behind the batch exchanged in memory, as heads and
            tokens are by .view().transpose(); sliced: the middle of rows twice as wide, as one of fused
            projections is; expanded: by .expand() along the batch, with a stride of 0.
    """
    if layout == "transposed":
        axes = (1, 2) if tensor.ndim > 2 else (0, 1)
        return tensor.transpose(*axes).contiguous().transpose(*axes)
    if layout == "sliced":
        width = tensor.shape[-1]
        wide = tensor.new_full((*tensor.shape[:-1], 2 * width), FILLER)
        middle = wide[..., width // 2 : width // 2 + width]
        return middle.copy_(tensor)
    return tensor[:1].expand_as(tensor) if layout == "expanded" else tensor
