"""The frequency rule of a GGUF file: from its metadata, or from the divisors it stores as a tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reference_impl import Rope
from reference_impl.rope import inv_freq

PREFIX = "llama.rope."
DIVISORS = "rope_freqs.weight"
KNOWN = {"scaling.type", "scaling.factor", "scaling.original_context_length", "scaling.finetuned"}
KNOWN |= {"freq_base", "scale_linear", "dimension_count"}
# low_freq_factor, high_freq_factor and C0 of every released Llama with the llama3 rule.
RELEASED = (1.0, 4.0, 8192)
# Of the relative difference between stored and derived divisors: both come from a float32 chain, which is
# good to a few 1e-7; another whole number in the rule's fields moves them by more than 1e-4.
AGREE = 1e-5


def shortest(value: float) -> float:
    """The shortest decimal that rounds to this float32: metadata stores 1e-5 as 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def rope_from_gguf(metadata: Mapping[str, Any], divisors_P: Tensor | None, head_dim: int) -> Rope:
    """The frequency rule of a GGUF file.

    Args:
        metadata: of the file.
        divisors_P: rope_freqs.weight, by which each frequency is divided; None where the file has none.
        head_dim: d.

    Raises:
        ValueError: a rule or a field that the canonical Llama does not have, or divisors that no rule gives.
    """
    given = {key.removeprefix(PREFIX): value for key, value in metadata.items() if key.startswith(PREFIX)}
    if unknown := sorted(set(given) - KNOWN):
        raise ValueError(
            f"metadata {PREFIX}{unknown[0]} = {given[unknown[0]]!r} would be dropped; "
            f"this version knows {', '.join(sorted(KNOWN))}"
        )
    kind = given.get("scaling.type", "linear")  # what llama.cpp assumes of a bare factor
    if kind not in ("none", "linear"):
        raise ValueError(
            f"{PREFIX}scaling.type is {kind!r}; this version knows none, linear, and the llama3 rule by its "
            f"{DIVISORS}"
        )
    theta = shortest(given.get("freq_base", 10000.0))
    factor = 0.0 if kind == "none" else given.get("scaling.factor", given.get("scale_linear", 0.0))
    scaled = factor not in (0.0, 1.0)  # llama.cpp takes 0 for "not given"
    if scaled and divisors_P is not None:
        raise ValueError(f"linear scaling by {factor} and {DIVISORS} together; expected one rule at a time")
    if divisors_P is not None:
        return rope_from_divisors(divisors_P, theta, head_dim)
    if scaled:
        return Rope(rope_theta=theta, rope_type="linear", factor=shortest(factor))
    return Rope(rope_theta=theta)


def rope_from_divisors(divisors_P: Tensor, theta: float, head_dim: int) -> Rope:
    """The rule that gives these divisors, proved by computing them from it again.

    llama.cpp stores the llama3 rule as its divisors alone; its four fields are not in the file. They follow
    from the divisors up to a common scale of low, high and C0, which does not change the function.

    Args:
        divisors_P: [d/2].
        theta: θ.
        head_dim: d.

    Raises:
        ValueError: no rule gives them.

    Source: llama.cpp convert_hf_to_gguf.py, LlamaModel.generate_extra_tensors.
    """
    divisors_P = divisors_P.double()
    if tuple(divisors_P.shape) != (head_dim // 2,):
        raise ValueError(f"{DIVISORS} has shape {list(divisors_P.shape)}, expected [{head_dim // 2}]")
    freq_P = inv_freq(Rope(rope_theta=theta), head_dim, torch.float64)
    factor = shortest(divisors_P.max().item())
    for rope in candidates(divisors_P, freq_P, theta, factor):
        derived_P = freq_P / inv_freq(rope, head_dim, torch.float64)
        if torch.allclose(derived_P, divisors_P, rtol=AGREE, atol=0.0):
            return rope
    raise ValueError(
        f"{DIVISORS} divides the frequencies by {divisors_P.min():.6g} to {factor:.6g}, and neither "
        "the linear nor the llama3 rule gives these numbers; use the Hugging Face folder, whose config.json "
        "names the rule"
    )


def candidates(divisors_P: Tensor, freq_P: Tensor, theta: float, factor: float) -> list[Rope]:
    """The rules that could have given the divisors, the likeliest first."""
    if not (math.isfinite(factor) and factor > 0):
        return []
    if factor == 1.0:
        return [Rope(rope_theta=theta)]
    fields = [RELEASED, *fitted(divisors_P, freq_P, factor)]
    scaled = [
        Rope(
            rope_theta=theta,
            rope_type="llama3",
            factor=factor,
            low_freq_factor=low,
            high_freq_factor=high,
            original_max_position_embeddings=context,
        )
        for low, high, context in fields
    ]
    return [Rope(rope_theta=theta, rope_type="linear", factor=factor), *scaled]


def fitted(divisors_P: Tensor, freq_P: Tensor, factor: float) -> list[tuple[float, float, int]]:
    """low, high and C0 from the smooth band: there s = (C0/λ − low)/(high − low) is a line in 1/λ.

    Returns:
        with one pair in the band, the released low and high and the C0 that fits; with more, also the high
        and C0 of the line, at low = 1; none where the band is empty or the numbers make no sense.
    """
    keep_P = (1 / divisors_P - 1 / factor) / (1 - 1 / factor)
    band_P = (keep_P > AGREE) & (keep_P < 1 - AGREE)
    if not bool(band_P.any()):
        return []
    per_wave, keep = (freq_P[band_P] / (2 * math.pi)).tolist(), keep_P[band_P].tolist()
    low, high, _ = RELEASED
    fields = [(low, high, round((low + keep[0] * (high - low)) / per_wave[0]))]
    if len(keep) > 1:
        slope = (keep[0] - keep[-1]) / (per_wave[0] - per_wave[-1])
        at_zero = keep[0] - slope * per_wave[0]
        if slope > 0 and at_zero < 0:
            high = round(1 - 1 / at_zero, 3)
            fields.append((1.0, high, round(slope * (high - 1))))
    return [(low, high, context) for low, high, context in fields if high > low and context >= 1]
