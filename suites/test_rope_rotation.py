"""ROPE 3-8, 11 and 15: the rotation and its laws."""

from dataclasses import replace

import torch
from hypothesis import strategies as st

from conformance import (
    EXACT_ORACLE,
    ModelCase,
    RotateCase,
    agree,
    answers,
    asks,
    check,
    judge,
    strategies,
    unchanged,
    without_memory,
)

FARTHEST = 131071  # the last position of Llama 3.1
LAYOUTS = ("transposed", "sliced", "expanded")


def rotation_cases(selection):
    for dtype in selection.dtypes:
        yield from (RotateCase(dtype=dtype, head_dim=d) for d in (16, 8, 2, 34, 64, 128))
        yield from (RotateCase(dtype=dtype, tokens=t, batch=1) for t in (31, 33, 65, 129))
        yield from (RotateCase(dtype=dtype, start=start) for start in (1, 60, 8190))
        yield RotateCase(dtype=dtype, batch=1, tokens=1, start=5)
        yield RotateCase(dtype=dtype, batch=3, tokens=1, start=5)
        yield RotateCase(dtype=dtype, pattern="one-hot")
        yield RotateCase(dtype=dtype, pattern="outlier", head_dim=64)
        yield RotateCase(dtype=dtype, start=FARTHEST - 8)
        yield from (RotateCase(dtype=dtype, layout=layout, tokens=5) for layout in LAYOUTS)


@check("ROPE-3", cases=rotation_cases, draws=lambda s: strategies.rotations(s, st.just(0)))
def test_half_split_pairs_are_turned(subject, case):
    return judge(torch.cat(asks.rotation(subject, case), dim=1), answers.apply_rope, case)


@check("ROPE-5", cases=rotation_cases, draws=lambda s: strategies.rotations(s, st.just(0)))
def test_the_length_of_every_vector_is_kept(subject, case):
    rotated = torch.cat(asks.apply_rope(subject, case), dim=1)
    return judge(answers.lengths(rotated), answers.rotated_lengths, case, EXACT_ORACLE)


def shift_cases(selection):
    for dtype in selection.dtypes:
        yield from (RotateCase(dtype=dtype, shift=shift) for shift in (1, 17, 1000))
        yield RotateCase(dtype=dtype, shift=64, kv_heads=1, head_dim=64, tokens=17)


def drawn_shifts(selection):
    """Rows of several scores of dense vectors: of a lone one, or of one-hot ones, a row may be zero."""
    return strategies.rotations(selection, st.integers(1, 4000), fewest=9, patterns=strategies.DENSE)


@check("ROPE-6", cases=shift_cases, draws=drawn_shifts)
def test_scores_depend_on_the_distance_alone(subject, case):
    here, shifted = (answers.scores(*asks.apply_rope(subject, case, shift)) for shift in (0, case.shift))
    return agree(shifted, here, answers.rotated_scores, case, EXACT_ORACLE)


def shifted_model_cases(selection):
    for dtype in selection.dtypes:
        for variant, shape in selection.smalls():
            yield ModelCase(dtype=dtype, variant=variant, shape=shape, tokens=17)


@check("ROPE-6", cases=shifted_model_cases, draws=strategies.models)
def test_attention_does_not_change_when_all_positions_shift(subject, case):
    x = subject.on_device(case.hidden())
    positions = subject.on_device(torch.arange(case.tokens))
    model = subject.model(case)
    here = model.attention_module(x, positions, case.layer)
    shifted = model.attention_module(x, positions + answers.SHIFT, case.layer)
    return agree(shifted, here, answers.shifted_attention_module, case, EXACT_ORACLE)


def few_rotations(selection):
    return [RotateCase(dtype=dtype) for dtype in selection.dtypes]


@check("ROPE-11", cases=few_rotations)
def test_rotation_has_no_memory(subject, case):
    """The same case first, and last, after others of its shape elsewhere, longer, and of another dtype."""
    return without_memory(
        lambda c: torch.cat(asks.rotation(subject, c), dim=1),
        answers.apply_rope,
        case,
        replace(case, dtype="float32" if case.dtype == "bfloat16" else "bfloat16"),
        replace(case, start=60, theta=1e4),
        replace(case, seed=case.seed + 1, tokens=33),
    )


def kept_cases(selection):
    """Contiguous, where a kernel may write in place; and not, where it may make copies."""
    for dtype in selection.dtypes:
        yield from (RotateCase(dtype=dtype, layout=layout) for layout in ("contiguous", "transposed"))


@check("ROPE-15", cases=kept_cases)
def test_q_k_and_the_tables_are_left_as_they_were(subject, case):
    q, k = (subject.on_device(t) for t in case.inputs())
    cos, sin = asks.contract_tables(subject, case)
    return unchanged(subject.implementation.apply_rope, q=q, k=k, cos=cos, sin=sin)


def token_cases(selection):
    for variant, shape in selection.few():
        yield ModelCase(variant=variant, shape=shape, tokens=9, places="gaps")


@check("ROPE-15", cases=token_cases)
def test_position_ids_and_tokens_are_left_as_they_were(subject, case):
    tokens, positions = (subject.on_device(t) for t in (case.token_ids(), case.positions()))
    return unchanged(subject.model(case).logits, tokens=tokens, positions=positions)


def origin_cases(selection):
    return [RotateCase(dtype=d, tokens=1, head_dim=w) for d in selection.dtypes for w in (16, 8, 2, 128)]


@check("ROPE-7", cases=origin_cases)
def test_position_zero_is_the_identity(subject, case):
    return judge(torch.cat(asks.apply_rope(subject, case), dim=1), answers.unrotated, case)


def head_cases(selection):
    """One kv head, two, and as many as query heads; two tokens are enough, position 0 shows nothing."""
    return [
        RotateCase(dtype=d, heads=h, kv_heads=g, tokens=2, start=3)
        for d in selection.dtypes
        for h, g in ((6, 1), (6, 2), (2, 1), (4, 4))
    ]


@check("ROPE-8", cases=head_cases)
def test_q_and_every_kv_head_are_rotated(subject, case):
    return judge(torch.cat(asks.rotation(subject, case), dim=1), answers.apply_rope, case)


@check("ROPE-8", cases=shifted_model_cases, draws=strategies.models)
def test_v_is_not_rotated(subject, case):
    return judge(asks.attention_module(subject, case), answers.attention_module, case)
