"""ROPE-4: adjacent pairs, the layout of Meta's own code, are the same function with the rows permuted."""

from hypothesis import strategies as st

from conformance import (
    ModelCase,
    RotateCase,
    adjacent_rows,
    answers,
    asks,
    check,
    judge,
    strategies,
)
from reference_impl.rope import interleave


def pair_cases(selection):
    for dtype in selection.dtypes:
        yield from (RotateCase(dtype=dtype, kv_heads=g, head_dim=d) for g, d in ((2, 16), (1, 8), (6, 64)))
        yield RotateCase(dtype=dtype, start=60, tokens=17)


def dense(selection):
    """Of one-hot vectors a row of scores may be zero, and has no scale."""
    return strategies.rotations(selection, st.just(0), fewest=9, patterns=strategies.DENSE)


@check("ROPE-4", cases=pair_cases, draws=dense)
def test_scores_of_adjacent_pairs_are_those_of_half_split_pairs(subject, case):
    """In whatever order q and k come back: their products are what attention sees."""
    q, k = (subject.on_device(interleave(t)) for t in case.inputs())
    cos, sin = (t[:, : case.head_dim // 2] for t in asks.contract_tables(subject, case))
    rotated = subject.implementation.apply_rope_adjacent(q, k, cos, sin)
    return judge(answers.scores(*rotated), answers.rotated_scores, case)


def layout_cases(selection):
    """6 query on 2 kv heads: with 4 on 2, k permuted by the wrong number of heads is the same function."""
    for dtype, variant, shape in selection.models():
        yield ModelCase(dtype=dtype, variant=variant, shape=shape, tokens=33, batch=2)


@check("ROPE-4", cases=layout_cases, draws=strategies.models)
def test_a_model_of_adjacent_pairs_on_permuted_rows_gives_the_same_logits(subject, case):
    rows = adjacent_rows(case.config, case.weights())
    weights = {name: subject.on_device(w) for name, w in rows.items()}
    model = subject.implementation.build_adjacent(case.config, weights)
    return judge(asks.logits_of(model, subject, case), answers.logits, case)
