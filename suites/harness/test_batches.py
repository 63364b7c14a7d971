"""Padded and packed batches: what each token sees, and right answers that owe nothing to a mask."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance import MaskedAttentionCase, PackedCase, PaddedCase, Selection, Subject, asks, strategies
from conformance.case_spec import parse_case
from conformance.cases import SIGHTS
from conformance.implementations.reference import Reference
from conformance.numerics import answers
from conformance.numerics.settings import ORACLE

quickly = settings(max_examples=40, deadline=None, database=None, derandomize=True)
PADDED = PaddedCase(batch=3, tokens=6, lengths=(2, 6, 0), filler=130)
PACKED = PackedCase(batch=2, tokens=6, documents=(3, 1, 2))
WINDOWED = {"variant": "mistral-7b", "but": (("sliding_window", 2),)}


@quickly
@given(data=st.data())
def test_every_drawn_case_is_read_back_and_sees_something(data):
    selection = Selection()
    ways = (strategies.padded, strategies.packed, lambda s: strategies.masked(s, *SIGHTS))
    case = data.draw(st.one_of(*(way(selection) for way in ways)))
    assert parse_case(case.spec) == case
    assert case.mask().dtype == torch.bool
    assert bool(case.mask().any()) or case.sight == "blind"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("PaddedCase(lengths=(9, 65))", r"lengths \(9, 65\) do not fit 3 rows of at most 65 tokens"),
        ("PaddedCase(lengths=(9, 66, 3))", "do not fit 3 rows of at most 65 tokens"),
        ("PaddedCase(lengths=(9, -1, 3))", r"lengths is \(9, -1, 3\), a tuple of whole numbers of 0"),
        ("PaddedCase(lengths=(0, 0, 0))", "do not fit 3 rows of at most 65 tokens, some of them real"),
        (
            "PaddedCase(lengths=(9, 1.5, 3))",
            "lengths is .*, a tuple of whole numbers of 0 … 2147483647 is needed",
        ),
        ("PaddedCase(side='top')", "side is 'top', there are left, right"),
        ("PackedCase(documents=(5, 9))", r"documents \(5, 9\) of at least one token add up to 14, not to 65"),
        ("PackedCase(documents=(65, 0))", "a tuple of whole numbers of 1"),
        ("PackedCase(reset=1)", "reset is 1, True or False is needed"),
        ("MaskedAttentionCase(sight='far')", "sight is 'far', there are causal, left, right"),
    ],
)
def test_a_case_that_does_not_add_up_is_refused(spec, message):
    with pytest.raises(ValueError, match=message):
        parse_case(spec)


# Padding.


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_real_tokens_of_a_row_are_the_same_on_either_side(side):
    case = replace(PADDED, side=side)
    rows = [row[real] for row, real in zip(case.token_ids(), case.real(), strict=True)]
    assert [len(row) for row in rows] == [2, 6, 0]
    assert all(torch.equal(row, alone) for row, (alone, _) in zip(rows[:2], PADDED.alone(), strict=True))
    assert set(case.token_ids()[~case.real()].tolist()) == {130}


def test_padding_stands_where_the_case_says():
    assert PADDED.real()[0].tolist() == [False] * 4 + [True] * 2
    assert replace(PADDED, side="right").real()[0].tolist() == [True] * 2 + [False] * 4


def test_positions_of_a_padded_row_are_counted_over_its_real_tokens():
    assert PADDED.positions().tolist() == [[0, 0, 0, 0, 0, 1], [0, 1, 2, 3, 4, 5], [0] * 6]


def test_cases_that_differ_in_padding_alone_share_an_oracle():
    others = ({"side": "right"}, {"filler": 3}, {"tokens": 9}, {"batch": 2, "lengths": (2, 6)})
    for other in (replace(PADDED, **fields) for fields in others):
        assert other.question == PADDED.question
        assert torch.equal(other.token_ids()[other.real()], PADDED.token_ids()[PADDED.real()])
    assert replace(PADDED, lengths=(3, 6, 0)).question != PADDED.question


# Packing.


def test_every_row_begins_with_another_document():
    assert [PACKED.lengths(row) for row in range(4)] == [(3, 1, 2), (1, 2, 3), (2, 3, 1), (3, 1, 2)]
    assert PACKED.document().tolist() == [[0, 0, 0, 1, 2, 2], [0, 1, 1, 2, 2, 2]]
    assert PACKED.positions().tolist() == [[0, 1, 2, 0, 0, 1], [0, 0, 1, 0, 1, 2]]
    assert replace(PACKED, reset=False).positions().tolist() == [0, 1, 2, 3, 4, 5]


def test_a_document_sees_itself_up_to_the_token_at_hand():
    seen = PACKED.mask()[0].int().tolist()
    assert seen == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [0, 0, 0, 1, 0, 0],
        [0, 0, 0, 0, 1, 0],
        [0, 0, 0, 0, 1, 1],
    ]


def test_a_window_is_part_of_what_a_document_sees():
    assert replace(PACKED, **WINDOWED).mask()[0, 2].int().tolist() == [0, 1, 1, 0, 0, 0]


def test_documents_are_computed_alone_where_they_begin():
    begins = [at for _, at in replace(PACKED, reset=False).alone()]
    assert begins == [0, 3, 4, 0, 1, 3]
    assert {at for _, at in PACKED.alone()} == {0}
    assert torch.equal(torch.cat([tokens for tokens, _ in PACKED.alone()]), PACKED.token_ids().flatten())


# The right answers.


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("reset", [True, False])
def test_a_document_alone_is_what_the_oracle_makes_of_its_own_mask(reset):
    case = replace(PACKED, reset=reset)
    together = answers.model_of(case, ORACLE)(
        case.token_ids(), positions=case.positions(), mask=case.mask()[:, None]
    )
    apart = (together.flatten(0, 1) - answers.logits_alone(case, ORACLE)).abs().max()
    assert float(apart) < 1e-12


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("case", [PADDED, replace(PADDED, side="right"), replace(PADDED, **WINDOWED)])
def test_a_row_alone_is_what_the_oracle_makes_of_its_padding(case):
    together = answers.model_of(case, ORACLE)(case.token_ids(), real=case.real())[case.real()]
    assert float((together - answers.logits_alone(case, ORACLE)).abs().max()) < 1e-12


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("sight", [sight for sight in SIGHTS if sight != "blind"])
def test_masked_attention_is_the_formula_query_by_query(sight):
    case = MaskedAttentionCase(sight=sight, batch=2, tokens=7, past=2)
    q, k, v = (t.double() for t in case.inputs())
    wanted = []
    for row, mask in enumerate(case.rows()):
        for t in mask.any(-1).nonzero()[:, 0]:
            keys, values = (x[row, :, mask[t]].repeat_interleave(3, 0) for x in (k, v))
            weights = ((keys @ q[row, :, t, :, None])[..., 0] / 4).softmax(-1)
            wanted.append((weights[:, None] @ values)[:, 0])
    assert torch.allclose(answers.masked_attention(case, ORACLE), torch.stack(wanted), rtol=1e-12, atol=1e-12)


def test_sights_are_what_they_are_called():
    case = MaskedAttentionCase(batch=2, tokens=5)
    blind = {sight: (~replace(case, sight=sight).sees()).sum(1).tolist() for sight in SIGHTS}
    none = [0, 0]
    assert blind == {
        **dict.fromkeys(("causal", "right", "documents", "window", "holes"), none),
        "left": [2, 0],
        "blind-first": [1, 1],
        "blind-some": [2, 2],
        "blind": [5, 5],
    }


@pytest.mark.parametrize(("dtype", "level"), [("float32", 131072.0), ("float16", 61440.0)])
@pytest.mark.parametrize("sight", ["right", "causal"])
def test_levelled_scores_are_exact_and_the_same_for_all_that_is_seen(dtype, level, sight):
    case = MaskedAttentionCase(dtype=dtype, sight=sight, level=level)
    q, k, _ = case.inputs()
    scores = q @ k.repeat_interleave(3, 1).transpose(-2, -1) * case.scale
    seen = case.rows()[:, None].expand(scores.shape)
    assert set(scores[seen].tolist()) == {-level}
    hidden = ~case.rows().any(1)[:, None, None].expand(scores.shape)
    assert set(scores[hidden].tolist()) <= {0.0}
    assert bool(hidden.any()) == (sight == "right")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_poison_is_finite_and_where_nobody_looks(dtype):
    plain = MaskedAttentionCase(dtype=dtype, sight="left", batch=3)
    case = replace(plain, poison=1e3)
    hidden = ~case.rows().any(1)
    for clean, poisoned in zip(plain.inputs()[1:], case.inputs()[1:], strict=True):
        clean, poisoned = clean.transpose(1, 2), poisoned.transpose(1, 2)  # noqa: PLW2901 - [B, S, G, d]
        assert torch.equal(clean[~hidden], poisoned[~hidden])
        assert set(poisoned[hidden].abs().flatten().tolist()) == {1000.0}


@pytest.mark.usefixtures("one_thread")
def test_results_and_right_answers_are_in_the_same_order():
    subject = Subject(Reference())
    for case in (PADDED, replace(PADDED, side="right"), PACKED):
        got = asks.logits_alone(subject, case, placed=isinstance(case, PackedCase))
        assert torch.allclose(got.double(), answers.logits_alone(case, ORACLE), rtol=1e-3, atol=1e-4)
    case = MaskedAttentionCase(sight="left", batch=3)
    got = asks.that_see(asks.masked_attention(subject, case), case)
    assert torch.allclose(got.double(), answers.masked_attention(case, ORACLE), rtol=1e-4, atol=1e-4)
