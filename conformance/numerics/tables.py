"""The verdict on cos/sin tables: frequencies in ulp, entries against the contract angles.

A table is compared neither with a pasted tolerance nor with exact angles: at position 8192 a right float32
table is 6e-4 away from them, at 131072 9e-3.
"""

from __future__ import annotations

import torch
from torch import Tensor

from conformance.cases import TableCase
from conformance.numerics import answers
from conformance.numerics.settings import ORACLE, Setting
from conformance.numerics.verdict import Verdict, malformed, oracle_of
from reference_impl.rope import inv_freq

# From the float32 chain, a float64-rounded inv_freq is 1 ulp away, a bf16-rounded one thousands.
INV_FREQ_ULP = 8.0
# The blend of llama3 subtracts: there one rounded from float64 is 9 ulp away from the chain.
BLENDED_ULP = 16.0
# Positions at which frequencies are read back: powers of two, whose product with a frequency is not rounded.
READ_AT = (1, 16, 128)


def half_width(table: Tensor, head_dim: int) -> Tensor:
    """A table [T, d/2]; one of width d must repeat its half; d is the rotated part of a head.

    Raises:
        ValueError: another width, or the two halves differ.
    """
    half = head_dim // 2
    if table.shape[-1] == half:
        return table
    if table.shape[-1] != head_dim:
        raise ValueError(f"table has width {table.shape[-1]}, expected {half} or {head_dim}")
    if not torch.equal(table[..., :half], table[..., half:]):
        raise ValueError("the two halves of the table differ, expected the second to repeat the first")
    return table[..., :half]


def frequencies_at_one(cos: Tensor, sin: Tensor) -> Tensor:
    """inv_freq [P] read back from the tables' row of position 1, in float64; every angle there is below π."""
    return torch.atan2(sin.to(torch.float64), cos.to(torch.float64)).flatten()


def frequencies(cos: Tensor, sin: Tensor) -> Tensor:
    """inv_freq [P] read back from the tables' rows of the positions READ_AT, to 1/128 of what one row tells.

    The row of position 1 tells how many whole turns the next one has made, and so on.

    Args:
        cos, sin: [3, P].
    """
    angles = torch.atan2(sin.to(torch.float64), cos.to(torch.float64))
    found = angles[0]
    for position, angle in zip(READ_AT[1:], angles[1:], strict=True):
        turns = ((found * position - angle) / (2 * torch.pi)).round()
        found = (angle + 2 * torch.pi * turns) / position
    return found


def judge_inv_freq(cos: Tensor, sin: Tensor, case: TableCase) -> Verdict:
    """Whether the frequencies behind the tables' row of position 1 are the float32 chain's, within 8 ulp.

    Args:
        cos, sin: [1, d/2] or [1, d], float32.
        case: whose frequencies.
    """
    config = case.config
    width = config.rope.rotary_dim(config.head_dim)
    want = inv_freq(config.rope, config.head_dim)
    got = frequencies_at_one(half_width(cos, width), half_width(sin, width))
    ulp = torch.nextafter(want, torch.tensor(torch.inf)).to(torch.float64) - want.to(torch.float64)
    error = (got - want.to(torch.float64)).abs() / ulp
    if not bool(error.isfinite().all()):
        return Verdict(
            passed=False, measure="finite", reason="the table has non-finite entries at position 1"
        )
    worst = int(error.argmax())
    allowed = BLENDED_ULP if config.rope.rope_type == "llama3" else INV_FREQ_ULP
    headroom = float(error[worst]) / allowed
    return Verdict(
        passed=headroom <= 1,
        measure="inv_freq, ulp",
        error=float(error[worst]),
        budget=allowed,
        headroom=headroom,
        coordinate=(worst,),
        reason=""
        if headroom <= 1
        else f"pair {worst} turns by {float(got[worst]):.9g} a position, expected {float(want[worst]):.9g}",
    )


def judge_tables(cos: Tensor, sin: Tensor, read: tuple[Tensor, Tensor], case: TableCase) -> Verdict:
    """Whether cos and sin are those of the float32 product position · inv_freq.

    The budget of an entry is 2 ulp of one (cos and sin are bounded by it), and position · |Δinv_freq| for the
    frequency the implementation itself uses, which judge_inv_freq bounds. Where that is another than the
    contract's, its product with the position is rounded elsewhere: an ulp of either angle on top.

    Args:
        cos, sin: [T, d/2] or [T, d], float32, at case.positions().
        read: cos and sin at the positions READ_AT.
        case: which tables.
    """
    config = case.config
    width = config.rope.rotary_dim(config.head_dim)
    got = torch.stack([half_width(t, width) for t in (cos, sin)])
    want = oracle_of(answers.rope_tables, case, ORACLE)
    wrong = malformed(got, want, torch.float32)
    if wrong is not None:
        return wrong
    right = inv_freq(config.rope, config.head_dim).to(torch.float64)
    drift = (frequencies(*(half_width(t, width) for t in read)) - right).abs()
    ulp = torch.finfo(torch.float32).eps
    resolution, places = ulp / READ_AT[-1], case.positions().to(torch.float64)[:, None]
    elsewhere = torch.where(drift > 0.6 * resolution, 2 * ulp * right, 0.0)
    budget = 2 * ulp + places * (drift + resolution + elsewhere)
    ratio = (got.to(torch.float64) - want).abs() / budget
    at = torch.unravel_index(ratio.argmax(), ratio.shape)
    contract = torch.equal(got, answers.rope_tables(case, Setting(dtype=torch.float32)))
    allowed = float(budget.expand_as(ratio)[at])
    return Verdict(
        passed=float(ratio[at]) <= 1,
        measure="table entry",
        error=float(ratio[at]) * allowed,
        budget=allowed,
        headroom=float(ratio[at]),
        coordinate=tuple(int(i) for i in at),
        facts={"identical to the float32 chain to the bit": "yes" if contract else "no"},
    )
