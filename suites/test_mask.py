"""MASK 1-2, 7 and 9, LOGITS-3: what a token may see, alone, behind a cache, in a window, and in a batch."""

from dataclasses import replace

import torch

from conformance import (
    AttentionCase,
    MaskedAttentionCase,
    ModelCase,
    PackedCase,
    PaddedCase,
    agree,
    answers,
    asks,
    check,
    exact,
    judge,
    strategies,
)


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


# A sliding window.


def windowed(selection):
    """A case of each variant that has one."""
    shapes = {(v.name, shape): config for v in selection.variants for shape, config in v.small.items()}
    for dtype in selection.dtypes:
        for variant, shape in selection.smalls():
            if shapes[variant, shape].sliding_window is not None:
                yield ModelCase(dtype=dtype, variant=variant, shape=shape, batch=2, tokens=23)


def with_window(case, window, **other):
    return replace(case, but=(*other.items(), ("sliding_window", window)))


def window_cases(selection):
    """The variant's own, of 12; in float32 a token that sees itself alone, and lengths around a window."""
    for case in windowed(selection):
        yield case
        if case.dtype == "float32":
            for window, tokens in ((1, 9), (2, 9), (5, 4), (5, 5), (5, 6), (5, 17)):
                yield with_window(replace(case, tokens=tokens), window)


@check("MASK-7", cases=window_cases)
def test_logits_are_those_of_the_window(subject, case):
    return judge(asks.logits(subject, case), answers.logits, case)


def edge_cases(selection):
    """One layer alone: what a second one sees goes further back."""
    for case in windowed(selection):
        windows = (1, 5, 12) if case.dtype == "float32" else (12,)
        yield from (with_window(case, window, num_hidden_layers=1) for window in windows)


@check("MASK-7", cases=edge_cases)
def test_a_token_is_seen_by_as_many_as_the_window_holds_and_by_no_more(subject, case):
    """A law without an oracle: itself and the window − 1 behind it change with it, and none further on."""
    model, tokens = subject.model(case), subject.on_device(case.token_ids())
    at, window = 4, case.config.sliding_window
    other = tokens.clone()
    other[:, at] = (other[:, at] + 1) % case.config.vocab_size
    before, after = model.logits(tokens).clone(), model.logits(other)
    beyond, last = at + window, at + window - 1
    reached = agree(after[:, last], before[:, last], answers.logits, case)
    reason = f"the logits of token {last} are unchanged by token {at}, which a window of {window} shows it"
    return [
        agree(after[:, beyond:], before[:, beyond:], answers.logits, case),
        exact(not reached.passed, "seen", reason),
    ]


def padded_window_cases(selection):
    """Rows longer than the window beside padding, and documents longer than it."""
    for case in windowed(selection):
        common = {"dtype": case.dtype, "variant": case.variant, "shape": case.shape, "batch": 2}
        yield PaddedCase(**common, tokens=33, lengths=(19, 30))
        if case.dtype == "float32":
            yield PackedCase(**common, tokens=33, documents=(14, 19))


@check("MASK-7", cases=padded_window_cases)
def test_padding_and_other_documents_leave_the_window_where_it_is(subject, case):
    placed = isinstance(case, PackedCase)
    return judge(asks.logits_alone(subject, case, placed=placed), answers.logits_alone, case)


def narrow_cases(selection):
    for dtype in selection.dtypes:
        yield MaskedAttentionCase(dtype=dtype, sight="window", batch=1)
        yield MaskedAttentionCase(dtype=dtype, sight="window", batch=2, tokens=5, past=65)


@check("MASK-7", cases=narrow_cases, draws=lambda s: strategies.masked(s, "window"))
def test_attention_ends_where_the_window_does(subject, case):
    return judge(asks.that_see(asks.masked_attention(subject, case), case), answers.masked_attention, case)


# Masks of either kind.


def mask_cases(selection):
    for dtype in selection.dtypes:
        yield MaskedAttentionCase(dtype=dtype, sight="causal")
        yield from (MaskedAttentionCase(dtype=dtype, sight=s, batch=3) for s in ("right", "holes"))
        yield MaskedAttentionCase(dtype=dtype, sight="window", tokens=5, past=65)


def seeing(*sights):
    """Draws in which every query sees something: what others get is no matter of minus infinity."""
    return lambda selection: strategies.masked(selection, *sights)


def judge_masked(y, case):
    return judge(asks.that_see(y, case), answers.masked_attention, case)


@check("MASK-9", cases=mask_cases, draws=seeing("holes", "right", "window", "documents"))
def test_a_boolean_mask_may_be_given_for_all_rows_or_for_each(subject, case):
    q, k, v = (subject.on_device(t) for t in case.inputs())
    each = subject.on_device(case.rows()[:, None].contiguous())
    core = subject.implementation.attention_core
    return [
        judge_masked(core(q, k, v, mask, case.scale), case) for mask in (subject.on_device(case.mask()), each)
    ]


@check("MASK-9", cases=mask_cases, draws=seeing("holes", "right", "window", "documents"))
def test_an_additive_mask_says_what_the_boolean_one_does(subject, case):
    """0 is attend, minus infinity or the lowest number is not."""
    given = [subject.on_device(t) for t in case.inputs()]
    core, mask = subject.implementation.additive_attention_core, subject.on_device(case.mask())
    zeros = torch.zeros(mask.shape, dtype=case.torch_dtype, device=mask.device)
    lowest = (-torch.inf, torch.finfo(case.torch_dtype).min)
    return [judge_masked(core(*given, zeros.masked_fill(~mask, n), case.scale), case) for n in lowest]


def level_cases(selection):
    """Scores of what is seen as low as -1.3e5; in float16 as low as it can hold, but for a little."""
    for dtype in selection.dtypes:
        level = 61440.0 if dtype == "float16" else 131072.0
        yield from (
            MaskedAttentionCase(dtype=dtype, sight=s, batch=3, level=level) for s in ("right", "causal")
        )


@check("MASK-9", cases=level_cases)
def test_scores_however_low_are_not_beaten_by_what_is_hidden(subject, case):
    """All that is seen has one score, and what is hidden has it too, or 0 where nobody sees it."""
    return judge_masked(asks.masked_attention(subject, case), case)


def low_cases(selection):
    """Float32 alone: in float16 no score is so low before it is scaled."""
    for variant, shape in selection.few():
        yield ModelCase(variant=variant, shape=shape, batch=2, tokens=1)


@check("MASK-9", cases=low_cases)
def test_a_first_token_that_likes_itself_least_of_all_sees_itself_alone(subject, case):
    """With q = −10⁴ k every score of a token with itself is about −10⁵, and the first one has no other.

    One token alone has no use for q and k: the right answer is that of the weights as they were.
    """
    config, weights = case.config, case.weights()
    size, width = config.group_size, config.head_dim
    against = {
        name: -1e4
        * weights[name.replace("q_proj", "k_proj")]
        .unflatten(0, (-1, width))
        .repeat_interleave(size, 0)
        .flatten(0, 1)
        for name in weights
        if "q_proj" in name
    }
    given = {name: subject.on_device(w) for name, w in {**weights, **against}.items()}
    tokens = subject.on_device(replace(case, tokens=9).token_ids())
    tokens[:, :1] = subject.on_device(case.token_ids())
    model = subject.implementation.build(config, given)
    return judge(model.logits(tokens)[:, :1], answers.logits, case)


# Rows of a batch.


def row_cases(selection):
    for dtype in selection.dtypes:
        for variant, shape in selection.few():
            yield ModelCase(dtype=dtype, variant=variant, shape=shape, tokens=9, batch=7)
        yield from (ModelCase(dtype=dtype, variant=variant, shape=shape, tokens=9, batch=b) for b in (3, 2))


@check("LOGITS-3", cases=row_cases, draws=lambda s: strategies.models(s, tokens=(1, 33), batch=(2, 7)))
def test_a_row_does_not_depend_on_its_batch(subject, case):
    """A law without an oracle: every row alone, the last one too."""
    model, tokens = subject.model(case), subject.on_device(case.token_ids())
    together = model.logits(tokens).clone()
    alone = [model.logits(tokens[i : i + 1]) for i in range(case.batch)]
    return agree(torch.cat(alone), together, answers.logits, case)


def twin_cases(selection):
    return [c for c in row_cases(selection) if c.batch == 7]


@check("LOGITS-3", cases=twin_cases)
def test_rows_alike_have_logits_alike(subject, case):
    """A law without an oracle: the first row again and again; to the bit or not is told, and not judged."""
    tokens = subject.on_device(case.token_ids())[:1].expand(case.batch, -1)
    logits = subject.model(case).logits(tokens)
    first = logits[:1].expand(case.batch, -1, -1)
    same = "to the bit" if torch.equal(logits, first) else "but for rounding"
    return replace(agree(logits, first, answers.logits, case), facts={"rows alike have logits alike": same})
