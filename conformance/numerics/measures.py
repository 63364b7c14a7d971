"""Three errors of a tensor against the oracle, each taken per row and then from the worst row.

One number over the whole tensor would hide a fault on every row but the loudest; a mean hides one element;
and an error that all elements of a row share (a norm that is 1% too large in bfloat16) is visible neither in
the root mean square nor in the worst element, but in the row's gain.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MEASURES = ("rms", "worst element", "row gain")


@dataclass(frozen=True)
class Errors:
    """The three errors and where each is worst.

    Args:
        values: by measure; no unit, scaled by the RMS of the oracle's row.
        coordinates: index of the worst row (rms, row gain) or element (worst element).
    """

    values: dict[str, float]
    coordinates: dict[str, tuple[int, ...]]


def row_scale(oracle: Tensor, dtype: torch.dtype) -> Tensor:
    """RMS of each row [..., 1] of a float64 oracle, no less than the dtype's smallest normal number.

    Below it the spacing of the dtype no longer shrinks, so neither may the scale.
    """
    return oracle.pow(2).mean(-1, keepdim=True).sqrt().clamp_min(torch.finfo(dtype).smallest_normal)


def measure(actual: Tensor, oracle: Tensor, dtype: torch.dtype) -> Errors:
    """RMS of the error, worst element, and |row gain|, of the worst rows.

    rms = sqrt(mean(e²))/s, worst element = max|e|/s, row gain = mean(e·o)/s², which is ⟨y,o⟩/⟨o,o⟩ − 1, with
    e = y − o and s the RMS of the oracle's row. Both end at the largest number of the dtype: where the oracle
    overflows, infinity is right, and a small number is not.

    Args:
        actual: [..., n], any dtype.
        oracle: [..., n], float64.
        dtype: what actual was computed in.
    """
    most = torch.finfo(dtype).max
    oracle = oracle.clamp(-most, most)
    scale = row_scale(oracle, dtype)
    error = actual.to(torch.float64).clamp(-most, most) - oracle
    rms = (error.pow(2).mean(-1, keepdim=True)).sqrt() / scale
    worst = error.abs() / scale
    gain = ((error * oracle).mean(-1, keepdim=True) / scale.pow(2)).abs()
    values, coordinates = {}, {}
    for name, tensor, row_only in (
        (MEASURES[0], rms, True),
        (MEASURES[1], worst, False),
        (MEASURES[2], gain, True),
    ):
        at = int(tensor.argmax())
        index = place(at, tensor.shape)
        values[name] = float(tensor.flatten()[at])
        coordinates[name] = index[:-1] if row_only else index
    return Errors(values, coordinates)


def place(at: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The index of an element counted in memory order; torch.unravel_index takes twenty times as long."""
    index = []
    for size in reversed(shape):
        at, i = divmod(at, size)
        index.append(i)
    return tuple(reversed(index))


def first_dishonest(actual: Tensor, oracle: Tensor, dtype: torch.dtype) -> tuple[int, ...] | None:
    """Index of the first non-finite element that is not what the oracle overflows to; None if there is none.

    NaN matches nothing, and infinity only infinity of the same sign.
    """
    bad = ~actual.isfinite() & (actual != oracle.to(dtype))
    if not bool(bad.any()):
        return None
    return place(int(bad.flatten().nonzero()[0, 0]), bad.shape)
