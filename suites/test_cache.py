"""CACHE: prefill, decode, chunks, and where the next token stands."""

from dataclasses import replace

import torch

from conformance import (
    ModelCase,
    Verdict,
    agree,
    answers,
    asks,
    check,
    exact,
    judge_bytes,
    memory_of,
    require_power,
    strategies,
)


def chunked(*ways):
    """What is compared with one pass of the same model is the cache, whatever else is right or wrong."""

    def cases(selection):
        for dtype, variant, shape in selection.models():
            for chunks in ways:
                yield ModelCase(
                    dtype=dtype, variant=variant, shape=shape, tokens=sum(chunks), chunks=chunks, batch=2
                )

    return cases


@check("CACHE-1", cases=chunked((30, 1, 1, 1, 1, 1)))
def test_prefill_and_decode_give_the_logits_of_one_pass(subject, case):
    return agree(asks.stepped(subject, case), asks.logits(subject, case), answers.logits, case)


@check("CACHE-2", cases=chunked((7, 9, 1, 18), (1, 34)), draws=lambda s: strategies.models(s, chunked=True))
def test_any_partition_gives_the_logits_of_one_pass(subject, case):
    return agree(asks.stepped(subject, case), asks.logits(subject, case), answers.logits, case)


# All pairs fast, so that one position off shows behind hundreds of keys.
FAST = (("rope.rope_theta", 2.0), ("max_position_embeddings", 512))


def offset_cases(selection):
    """Near the beginning; and at 257, which an offset kept in bfloat16 cannot be."""
    yield from chunked((17, 1, 17))(selection)
    for dtype in (d for d in ("bfloat16", "float16") if d in selection.dtypes):
        variant, shape = selection.few()[0]
        chunks = (257, 1, 1, 1)
        yield ModelCase(
            dtype=dtype, variant=variant, shape=shape, batch=1, tokens=sum(chunks), chunks=chunks, but=FAST
        )


@check("CACHE-3", cases=offset_cases)
def test_the_next_position_is_the_number_of_tokens_processed(subject, case):
    require_power(case.twin)
    return agree(asks.stepped(subject, case), asks.logits(subject, case), answers.logits, case)


def store_cases(selection):
    """32 tokens, so that caches that grow by blocks end with a whole one; and a single head.

    A sliding window may keep all but one of its tokens and no more: of those, as many.
    """
    for dtype in selection.dtypes:
        for variant, shape in selection.smalls():
            case = ModelCase(dtype=dtype, variant=variant, shape=shape, batch=2, tokens=32)
            window = case.config.sliding_window
            yield case if window is None else replace(case, tokens=window - 1)
        variant, shape = selection.smalls()[0]
        one = (("num_key_value_heads", 1),)
        yield ModelCase(dtype=dtype, variant=variant, shape=shape, batch=2, tokens=32, but=one)


def stored(subject, case):
    """What the cache keeps of all tokens, for which it was made."""
    model = subject.model(case)
    cache = model.new_cache(case.batch, case.tokens)
    model.step(subject.on_device(case.token_ids()), cache)
    return model.cache_tensors(cache)


@check("CACHE-6", cases=store_cases)
def test_the_cache_stores_kv_heads_and_no_more_tokens_than_asked_for(subject, case):
    config, tensors = case.config, stored(subject, case)
    rows = 2 * config.num_hidden_layers * case.batch * case.tokens  # of keys and of values, each [heads, d]
    heads, expected = sum(t.numel() for t in tensors) / (rows * config.head_dim), config.num_key_value_heads
    reason = f"stores {heads:g} heads of {config.head_dim} a token, layer and key, expected {expected}"
    size = memory_of(config, case.torch_dtype, batch=case.batch, tokens=case.tokens).cache_bytes
    return [exact(heads == expected, "heads", reason), judge_bytes("keys and values", tensors, size)]


def shown_cases(selection):
    """A few tokens: every key and value matters."""
    for dtype in selection.dtypes:
        for variant, shape in selection.few():
            yield ModelCase(dtype=dtype, variant=variant, shape=shape, batch=2, tokens=6)


def last_logits(subject, case, turned=None):
    """Of the last token, behind the others; one of the tensors that the cache shows is negated before."""
    model = subject.model(case)
    first, last = subject.on_device(case.token_ids()).split([case.tokens - 1, 1], dim=1)
    cache = model.new_cache(case.batch, case.tokens)
    model.step(first, cache)
    tensors = model.cache_tensors(cache)
    if turned is not None:
        tensors[turned].neg_()
    return model.step(last, cache), len(tensors)


@check("CACHE-6", cases=shown_cases)
def test_what_the_cache_shows_is_what_the_model_reads(subject, case):
    right, count = last_logits(subject, case)
    idle = [i for i in range(count) if torch.equal(last_logits(subject, case, i)[0], right)]
    reason = f"{len(idle)} of the {count} tensors that are shown can be negated, and the next logits stay"
    return exact(count > 0 and not idle, "read back", reason)


@check("CACHE-7", cases=store_cases)
def test_the_cache_has_the_dtype_of_the_model(subject, case):
    found = {str(t.dtype) for t in stored(subject, case)}
    reason = f"keys and values are {', '.join(sorted(found))}, the model is {case.torch_dtype}"
    return exact(found == {str(case.torch_dtype)}, "dtype", reason)


def longest(tensor):
    """The axis of the tokens, where there are more of them than of anything else."""
    return max(range(tensor.ndim), key=lambda axis: tensor.shape[axis])


def rewritten_cases(selection):
    """More tokens in the prefill than heads, rows or elements of a head; then single ones and a chunk."""
    for dtype in selection.dtypes:
        for variant, shape in selection.few():
            chunks = (40, *[1] * 9, 7)
            yield ModelCase(
                dtype=dtype, variant=variant, shape=shape, tokens=sum(chunks), chunks=chunks, batch=2
            )


@check("CACHE-12", cases=rewritten_cases)
def test_later_steps_leave_cached_keys_and_values_as_they_are(subject, case):
    """Rotated when they are stored or when they are read: either way nothing stored changes."""
    model = subject.model(case)
    first, *rest = subject.on_device(case.token_ids()).split(list(case.chunks), dim=1)
    cache = model.new_cache(case.batch, case.tokens)
    model.step(first, cache)
    # A cache that grows holds the prefill alone, one of fixed capacity has room behind it.
    before = [t.narrow(longest(t), 0, case.chunks[0]).clone() for t in model.cache_tensors(cache)]
    for tokens in rest:
        model.step(tokens, cache)
    after = [t.narrow(longest(t), 0, case.chunks[0]) for t in model.cache_tensors(cache)]
    changed = [
        float((a - b).abs().max()) for a, b in zip(after, before, strict=True) if not torch.equal(a, b)
    ]
    reason = f"{len(changed)} of {len(before)} tensors of the first {case.chunks[0]} tokens were rewritten"
    return Verdict(
        passed=not changed,
        measure="stored bits",
        error=max(changed, default=0.0),
        budget=0.0,
        reason=reason if changed else "",
    )


@check("CACHE-12", cases=rewritten_cases)
def test_after_a_long_decode_the_logits_are_those_of_one_pass(subject, case):
    return agree(asks.stepped(subject, case), asks.logits(subject, case), answers.logits, case)
