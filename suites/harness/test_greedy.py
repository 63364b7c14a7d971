"""Greedy tokens: what rounding can choose is left open, everything else is not."""

import pytest
import torch

from conformance import ModelCase, answers, judge_greedy
from conformance.numerics.greedy import asked, judge_chosen
from conformance.numerics.verdict import oracle_of

pytestmark = pytest.mark.usefixtures("one_thread")

# A row of scale 1: the two best are 0.2 apart.
ORACLE = torch.tensor([[1.4, 1.2, -0.6, -0.4]], dtype=torch.float64)
CASE = ModelCase(batch=16, tokens=5)


def chosen(token, budget):
    return judge_chosen(torch.tensor([token]), ORACLE, budget, torch.float32)


def test_the_oracles_token_leaves_all_room():
    assert chosen(0, 1e-6).headroom == 0


def test_a_near_tie_may_go_either_way():
    assert chosen(1, 0.2).passed
    assert not asked(ORACLE, 0.2, torch.float32).any()


def test_beyond_two_budgets_only_the_oracles_token_is_right():
    verdict = chosen(1, 0.05)
    assert not verdict.passed
    assert verdict.headroom == pytest.approx(2, rel=0.05)
    assert verdict.reason == "the greedy token is 1, the oracle's is 0"
    assert asked(ORACLE, 0.05, torch.float32).all()


def test_a_token_far_behind_is_wrong_also_where_the_two_best_are_a_tie():
    assert not chosen(2, 0.2).passed


def test_how_many_rows_were_beyond_doubt_is_said():
    logits = oracle_of(answers.logits, CASE).float()
    verdict = judge_greedy(logits, CASE)
    assert verdict.passed
    assert verdict.facts == {"rows whose greedy token is beyond doubt": "80 of 80"}


def test_one_wrong_row_is_found_by_its_index():
    logits = oracle_of(answers.logits, CASE).float()
    logits[7, 3] = logits[7, 3].roll(1)
    verdict = judge_greedy(logits, CASE)
    assert not verdict.passed
    assert verdict.coordinate == (7, 3)


def test_a_case_in_which_every_row_is_a_tie_is_refused():
    case = ModelCase(dtype="bfloat16", batch=1, tokens=1, variant="llama-2-7b", regime="quiet")
    with pytest.raises(ValueError, match=r"ModelCase\(dtype='bfloat16', .* has no power: in no row are"):
        judge_greedy(oracle_of(answers.logits, case).bfloat16(), case)
