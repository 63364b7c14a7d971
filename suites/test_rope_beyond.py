"""ROPE-14: beyond the longest context the config speaks of, what comes is right, or a clear error."""

from dataclasses import replace

import torch

from conformance import (
    READ_AT,
    ModelCase,
    TableCase,
    Unsupported,
    agree,
    answers,
    asks,
    check,
    exact,
    judge,
    judge_tables,
)

CONTEXT = 24


def beyond_cases(**fields):
    """By one token, and by more than there are."""

    def cases(selection):
        but = (("max_position_embeddings", CONTEXT), ("num_hidden_layers", 1))
        for dtype in selection.dtypes[:1]:
            for variant, shape in selection.few():
                for tokens in (CONTEXT + 1, 2 * CONTEXT + 5):
                    yield ModelCase(
                        dtype=dtype, variant=variant, shape=shape, batch=2, tokens=tokens, but=but, **fields
                    )

    return cases


def right_or_refused(ask, verdict_of):
    """The verdict on what comes; an error that says something is as good."""
    try:
        y = ask()
    except Unsupported:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it raises is a result
        words = f"{type(error).__name__}: {error}"
        verdict = exact(
            bool(str(error).strip()), "refusal", f"refuses without a word: {type(error).__name__}"
        )
        return [replace(verdict, facts={"beyond the context": f"refuses ({words[:200]})"})]
    return [verdict_of(y)]


@check("ROPE-14", cases=beyond_cases())
def test_a_sequence_longer_than_the_context_is_right_or_refused(subject, case):
    return right_or_refused(
        lambda: asks.logits(subject, case), lambda logits: judge(logits, answers.logits, case)
    )


@check("ROPE-14", cases=beyond_cases())
def test_decoding_beyond_the_context_is_right_or_refused(subject, case):
    """Up to its last position, one token across, then all that is left in one chunk."""
    sizes = [CONTEXT - 1, 1, 1, case.tokens - CONTEXT - 1]
    model, tokens = subject.model(case), subject.on_device(case.token_ids())

    def ask():
        cache = model.new_cache(case.batch, case.tokens)
        pieces = tokens.split([n for n in sizes if n], dim=1)
        return torch.cat([model.step(piece, cache) for piece in pieces], dim=1)

    return right_or_refused(ask, lambda logits: judge(logits, answers.logits, case))


@check("ROPE-14", cases=beyond_cases())
def test_a_chunk_across_the_end_of_the_context_is_right_or_refused(subject, case):
    model, tokens = subject.model(case), subject.on_device(case.token_ids())

    def ask():
        cache = model.new_cache(case.batch, case.tokens)
        pieces = tokens.split([CONTEXT - 1, case.tokens - CONTEXT + 1], dim=1)
        return torch.cat([model.step(piece, cache) for piece in pieces], dim=1)

    return right_or_refused(ask, lambda logits: judge(logits, answers.logits, case))


@check("ROPE-14", cases=beyond_cases(places="gaps"))
def test_positions_beyond_the_context_are_right_or_refused(subject, case):
    return right_or_refused(
        lambda: asks.logits(subject, case), lambda logits: judge(logits, answers.logits, case)
    )


@check("ROPE-14", cases=beyond_cases())
def test_what_came_beyond_the_context_leaves_no_trace(subject, case):
    """Within the context the same model computes what it did before."""
    model, tokens = subject.built(case), subject.on_device(case.token_ids())
    before = model.logits(tokens[:, :9]).clone()
    right_or_refused(lambda: model.logits(tokens), lambda logits: judge(logits, answers.logits, case))
    return agree(model.logits(tokens[:, :9]), before, answers.first_logits, case)


def table_cases(selection):
    but = (("max_position_embeddings", CONTEXT),)
    for variant, shape in selection.few():
        yield TableCase(variant=variant, shape=shape, start=CONTEXT - 2, tokens=9, but=but)


@check("ROPE-14", cases=table_cases)
def test_tables_beyond_the_context_are_right_or_refused(subject, case):
    """Frequencies are read where the context is long enough for that."""

    def tables(of, positions):
        return [t.cpu() for t in subject.implementation.rope_tables(of.config, subject.on_device(positions))]

    long = replace(case, but=(("max_position_embeddings", READ_AT[-1] + 1),))
    read = tables(long, torch.tensor(READ_AT))
    return right_or_refused(
        lambda: tables(case, case.positions()), lambda halves: judge_tables(*halves, read, case)
    )
