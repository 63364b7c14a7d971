"""The verdict on greedy tokens: each is the oracle's, wherever rounding cannot have made the choice."""

from __future__ import annotations

import torch
from torch import Tensor

from conformance.cases import ModelCase
from conformance.numerics import answers
from conformance.numerics.measures import row_scale
from conformance.numerics.verdict import Verdict, budgets_of, malformed, oracle_of


def judge_chosen(chosen: Tensor, oracle: Tensor, budget: float, dtype: torch.dtype) -> Verdict:
    """Whether the oracle prefers its own token to the chosen one by no more than two budgets of a logit.

    Either of the two logits may be off by one budget. A token that stands further behind was not chosen by
    rounding.

    Args:
        chosen: [...] token ids.
        oracle: [..., V] float64 logits from which the oracle would choose.
        budget: of a logit, the worst element's, in units of its row's scale.
        dtype: of the logits from which the tokens were chosen.
    """
    gap = (oracle.amax(-1) - oracle.gather(-1, chosen[..., None])[..., 0]) / row_scale(oracle, dtype)[..., 0]
    at = torch.unravel_index(gap.argmax(), gap.shape)
    worst, allowed = float(gap[at]), 2 * budget
    row = oracle[at]
    return Verdict(
        passed=worst <= allowed,
        measure="greedy token",
        error=worst,
        budget=allowed,
        headroom=worst / allowed,
        coordinate=tuple(int(i) for i in at),
        reason=""
        if worst <= allowed
        else f"the greedy token is {int(chosen[at])}, the oracle's is {int(row.argmax())}",
    )


def asked(oracle: Tensor, budget: float, dtype: torch.dtype) -> Tensor:
    """The rows [...] in which the oracle's two best logits are further apart than two budgets."""
    first, second = oracle.topk(2).values.unbind(-1)
    return (first - second) / row_scale(oracle, dtype)[..., 0] > 2 * budget


def judge_greedy(logits: Tensor, case: ModelCase) -> Verdict:
    """Whether the greedy token of every row is the oracle's, but for ties within the budget.

    Args:
        logits: [B, T, V] of the implementation.
        case: the question.

    Raises:
        ValueError: all rows are ties within the budget, so that the case can show nothing.
    """
    dtype, want = case.torch_dtype, oracle_of(answers.logits, case.question)
    wrong = malformed(logits, want, dtype)
    if wrong is not None:
        return wrong
    budget = budgets_of(answers.logits, case.question)["worst element"]
    rows = asked(want, budget, dtype)
    if not bool(rows.any()):
        raise ValueError(f"{case.spec} has no power: in no row are the two best logits two budgets apart")
    verdict = judge_chosen(logits.detach().cpu().argmax(-1), want, budget, dtype)
    verdict.facts["rows whose greedy token is beyond doubt"] = f"{int(rows.sum())} of {rows.numel()}"
    return verdict
