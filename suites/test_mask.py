"""MASK 1-2 and LOGITS-3: what a token may see, alone, behind a cache, and in a batch."""

import torch

from conformance import AttentionCase, ModelCase, agree, answers, asks, check, judge, strategies


def causal_cases(selection):
    for dtype, variant, shape in selection.models():
        yield ModelCase(dtype=dtype, variant=variant, shape=shape, tokens=35, batch=2)


def with_the_last_changed(case, tokens, at):
    """The tokens, other ones from a place on."""
    changed = tokens.clone()
    changed[:, at:] = (changed[:, at:] + 1) % case.config.vocab_size
    return changed


@check("MASK-1", cases=causal_cases, draws=strategies.models)
def test_changing_a_token_leaves_the_logits_before_it_unchanged(subject, case):
    model = subject.model(case)
    at = case.tokens // 2
    tokens = subject.on_device(case.token_ids())
    before = model.logits(tokens)[:, :at].clone()
    after = model.logits(with_the_last_changed(case, tokens, at))[:, :at]
    return agree(after, before, answers.first_logits, case)


def behind_cases(selection):
    """Fewer queries than keys, more than one: a mask aligned top-left hides what it should not."""
    for dtype in selection.dtypes:
        yield from (
            AttentionCase(dtype=dtype, past=p, tokens=t) for p, t in ((7, 5), (1, 2), (60, 17), (65, 5))
        )


@check("MASK-2", cases=behind_cases, draws=strategies.attentions)
def test_the_last_query_sees_every_key(subject, case):
    return judge(asks.attention_core(subject, case), answers.attention_core, case)


def in_chunks(selection):
    return strategies.models(selection, chunked=True)


def chunk_cases(selection):
    """Behind more keys than one tile of a kernel holds."""
    for dtype in selection.dtypes:
        for variant, shape in selection.few():
            yield ModelCase(dtype=dtype, variant=variant, shape=shape, tokens=70, chunks=(65, 5), batch=2)


@check("MASK-2", cases=chunk_cases, draws=in_chunks)
def test_a_chunk_behind_a_cache_sees_all_of_it(subject, case):
    return agree(asks.stepped(subject, case), asks.logits(subject, case), answers.logits, case)


@check("MASK-2", cases=chunk_cases, draws=in_chunks)
def test_a_chunk_behind_a_cache_does_not_see_its_own_future(subject, case):
    """A law without an oracle: with the last token changed, all logits before it are as they were."""
    model = subject.model(case)
    tokens = subject.on_device(case.token_ids())
    before, after = (
        asks.stepped_on(model, asked, case)[:, :-1]
        for asked in (tokens, with_the_last_changed(case, tokens, case.tokens - 1))
    )
    return agree(after, before, answers.logits_but_the_last, case)


def row_cases(selection):
    for dtype in selection.dtypes:
        for variant, shape in selection.few():
            yield ModelCase(dtype=dtype, variant=variant, shape=shape, tokens=9, batch=7)


@check("LOGITS-3", cases=row_cases, draws=lambda s: strategies.models(s, tokens=(1, 33), batch=(2, 7)))
def test_a_row_does_not_depend_on_its_batch(subject, case):
    """A law without an oracle: every row alone, the last one too."""
    model, tokens = subject.model(case), subject.on_device(case.token_ids())
    together = model.logits(tokens).clone()
    alone = [model.logits(tokens[i : i + 1]) for i in range(case.batch)]
    return agree(torch.cat(alone), together, answers.logits, case)
