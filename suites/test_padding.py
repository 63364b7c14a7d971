"""MASK 3-5: rows of different length in a batch, queries that see nothing, and what stands in the padding."""

from dataclasses import replace

from conformance import (
    MaskedAttentionCase,
    PaddedCase,
    Unsupported,
    agree,
    answers,
    asks,
    check,
    exact,
    judge,
    strategies,
)


def padded(side, *lengths):
    """The shortest row first, so that its positions or its mask would not do for the others."""

    def cases(selection):
        models = (
            selection.models()
            if side == "left"
            else [(d, *m) for d in selection.dtypes for m in selection.few()]
        )
        for dtype, variant, shape in models:
            yield PaddedCase(
                dtype=dtype,
                variant=variant,
                shape=shape,
                batch=len(lengths),
                tokens=20,
                lengths=lengths,
                side=side,
            )

    return cases


def judge_alone(subject, case, *, placed=False):
    return judge(asks.logits_alone(subject, case, placed=placed), answers.logits_alone, case)


@check("MASK-3", cases=padded("left", 7, 20), draws=strategies.padded)
def test_a_row_padded_on_the_left_is_the_row_alone(subject, case):
    return judge_alone(subject, case)


@check("MASK-3", cases=padded("right", 7, 20))
def test_a_row_padded_on_the_right_is_the_row_alone(subject, case):
    return judge_alone(subject, case)


@check("MASK-3", cases=padded("right", 7, 20), draws=strategies.padded)
def test_positions_counted_over_the_mask_may_be_given_beside_it(subject, case):
    return [judge_alone(subject, c, placed=True) for c in (case, replace(case, side="left"))]


def full_cases(selection):
    """A row as long as the context; in a batch as wide, and in one that is wider."""
    context = (("max_position_embeddings", 40),)
    for dtype in selection.dtypes:
        for variant, shape in selection.few()[: None if dtype == "float32" else 1]:
            case = PaddedCase(
                dtype=dtype, variant=variant, shape=shape, batch=2, tokens=40, lengths=(9, 40), but=context
            )
            yield from (case, replace(case, tokens=57))


@check("MASK-3", cases=full_cases)
def test_a_row_that_fills_the_context_has_room_beside_its_padding(subject, case):
    """Right, or refused where the batch is wider than the context; never rows beyond a table."""
    try:
        return judge_alone(subject, case)
    except Unsupported:
        raise
    except Exception as error:
        context = case.config.max_position_embeddings
        if case.tokens <= context:
            raise
        reason = f"refuses a batch of {case.tokens} with padding where max_position_embeddings = {context}"
        raise Unsupported(f"{reason} ({type(error).__name__}: {error})") from error


# All pairs fast: 500 positions on, float32 rounds their angles to another function than 3 positions on.
FAST = (("rope.rope_theta", 1.5), ("max_position_embeddings", 512))


def far_cases(selection):
    """16-bit rounds more than that. Few tokens: there frequencies that ROPE-1 allows are near enough."""
    for variant, shape in selection.few():
        yield PaddedCase(variant=variant, shape=shape, batch=1, tokens=500, lengths=(3,), but=FAST)


@check("MASK-3", cases=far_cases)
def test_positions_are_counted_over_real_tokens_and_not_over_slots(subject, case):
    return judge_alone(subject, case)


# A row that is padding alone, beside others.


def empty_cases(selection):
    for dtype in selection.dtypes:
        for variant, shape in selection.few():
            yield PaddedCase(
                dtype=dtype, variant=variant, shape=shape, batch=3, tokens=20, lengths=(7, 0, 20)
            )


def finite(y, what):
    bad = (~y.isfinite()).nonzero().tolist()
    reason = f"{float(y[tuple(bad[0])]) if bad else 0} among {what}, {len(bad)} of {y.numel()} are not finite"
    return exact(not bad, "finite", reason, tuple(bad[0]) if bad else ())


@check("MASK-4", cases=empty_cases, draws=strategies.padded)
def test_a_batch_with_rows_that_see_nothing_is_finite_and_the_others_are_right(subject, case):
    logits = asks.batch_logits(subject, case, placed=False)
    real = logits[subject.on_device(case.real())]
    return [finite(logits, "the logits, padding included"), judge(real, answers.logits_alone, case)]


def blind_cases(selection):
    for dtype in selection.dtypes:
        for sight in ("blind-first", "blind-some", "left", "blind"):
            yield MaskedAttentionCase(dtype=dtype, sight=sight, batch=3)
        yield MaskedAttentionCase(dtype=dtype, sight="blind-some", tokens=65, past=7)


@check("MASK-4", cases=blind_cases, draws=lambda s: strategies.masked(s, "blind-some", "left", "blind-first"))
def test_a_query_that_sees_nothing_gets_finite_numbers_and_the_others_what_they_see(subject, case):
    """What it gets is not judged: zeros and the mean of all values are both in use."""
    y = asks.masked_attention(subject, case)
    verdicts = [finite(y, "the results of queries that see nothing")]
    if case.sees().any():
        verdicts.append(judge(asks.that_see(y, case), answers.masked_attention, case))
    return verdicts


# What stands in the padding.


@check("MASK-5", cases=padded("right", 7, 20), draws=strategies.padded)
def test_other_tokens_in_the_padding_leave_the_logits_unchanged(subject, case):
    """A law without an oracle, on either side; the other token is one of the text."""
    verdicts, text = [], case.alone()[0][0]
    for here in (case, replace(case, side="left")):
        before = asks.logits_alone(subject, here, placed=False)
        other = replace(here, filler=int(text[1]))
        after = asks.logits_alone(subject, other, placed=False)
        verdicts.append(agree(after, before, answers.logits_alone, case))
    return verdicts


def poisoned(case):
    """± a number so large that its scores are beaten by nothing, and overflow nowhere."""
    return replace(case, poison=1e3 if case.dtype == "float16" else 1e4)


def poison_cases(selection):
    for dtype in selection.dtypes:
        for sight in ("left", "right"):
            yield poisoned(MaskedAttentionCase(dtype=dtype, sight=sight, batch=3))
        yield poisoned(MaskedAttentionCase(dtype=dtype, sight="left", batch=2, tokens=5, past=65))
        yield poisoned(MaskedAttentionCase(dtype=dtype, sight="left", batch=2, tokens=1, past=64))


@check("MASK-5", cases=poison_cases, draws=lambda s: strategies.masked(s, "left", "right").map(poisoned))
def test_keys_and_values_that_nobody_sees_may_be_anything(subject, case):
    """The right answer is computed without them."""
    return judge(asks.that_see(asks.masked_attention(subject, case), case), answers.masked_attention, case)
