"""MEM, and what is held or made that should not be: saved tables, masks of the whole context."""

import contextlib
from dataclasses import replace

from conformance import (
    ModelCase,
    Unsupported,
    Watch,
    check,
    exact,
    holding,
    judge_bytes,
    judge_largest,
    memory_of,
)

# So long that a mask of all its pairs is larger than any table.
CONTEXT = 1024


def memory_cases(selection):
    for dtype in selection.dtypes:
        for variant, shape in selection.smalls():
            yield ModelCase(dtype=dtype, variant=variant, shape=shape)


def few_cases(selection, **fields):
    for dtype in selection.dtypes:
        for variant, shape in selection.few():
            yield ModelCase(dtype=dtype, variant=variant, shape=shape, batch=2, tokens=9, **fields)


def implied(case):
    return memory_of(case.config, case.torch_dtype, batch=case.batch, tokens=case.tokens)


@check("MEM-1", cases=memory_cases)
def test_parameters_take_the_bytes_that_the_config_implies(subject, case):
    held = [h.tensor for h in subject.model(case).held() if h.kind == "parameter"]
    return judge_bytes("parameters", held, implied(case).parameter_bytes)


@check("MEM-1", cases=few_cases)
def test_there_is_one_gradient_for_each_parameter(subject, case):
    gradients = subject.model(case).gradients(subject.on_device(case.token_ids()))
    return judge_bytes("gradients", gradients, implied(case).gradient_bytes)


@check("MEM-1", cases=lambda s: few_cases(s, but=(("max_position_embeddings", CONTEXT),)))
def test_buffers_are_no_more_than_one_table_of_the_context(subject, case):
    held = [h.tensor for h in subject.model(case).held() if h.kind == "buffer"]
    return judge_bytes("buffers", held, implied(case).table_bytes, at_most=True)


def cache_cases(selection):
    """32 tokens, so that caches that grow by blocks end with a whole one."""
    return [replace(case, tokens=32) for case in few_cases(selection)]


@check("MEM-1", cases=cache_cases)
def test_the_cache_takes_the_bytes_that_the_config_implies(subject, case):
    model = subject.model(case)
    cache = model.new_cache(case.batch, case.tokens)
    model.step(subject.on_device(case.token_ids()), cache)
    return judge_bytes("keys and values", model.cache_tensors(cache), implied(case).cache_bytes)


def rotary_cases(selection):
    return [ModelCase(variant=v, shape=s) for v, s in selection.smalls()]


@check("ROPE-12", cases=rotary_cases)
def test_nothing_that_is_trained_or_saved_holds_frequencies_or_a_table(subject, case):
    found = {
        h.name: (what, "a parameter" if h.kind == "parameter" else "in the state_dict")
        for h in subject.model(case).held()
        if (h.kind == "parameter" or h.saved) and (what := holding.resembles_rotary(h.tensor, case.config))
    }
    words = [f"{name} holds {what} and is {how}" for name, (what, how) in found.items()]
    return exact(not found, "tables held", "; ".join(words))


LONG = 4096
MASK = "as large as a mask of the whole context, though 9 tokens were at hand"


def long_cases(selection):
    but = (("max_position_embeddings", LONG),)
    return [ModelCase(variant=v, shape=s, batch=1, tokens=9, but=but) for v, s in selection.few()]


def judge_masks(watch, model, case):
    """A quarter of all pairs is the line, or what the config takes anyway where that is more."""
    with contextlib.suppress(Unsupported):  # where it cannot be asked, what it made was seen all the same
        watch.look("the model, which holds it", (h.tensor for h in model.held()))
    memory = memory_of(case.config, case.torch_dtype)
    cached = memory.cache_bytes // case.torch_dtype.itemsize
    return judge_largest(watch, max(LONG**2 // 4, memory.parameters, cached), MASK)


@check("MASK-8", cases=long_cases)
def test_no_mask_of_the_whole_context_is_made(subject, case):
    tokens, _drawn = subject.on_device(case.token_ids()), case.weights()
    with Watch() as watch:
        model = subject.built(case)
        model.logits(tokens)
    return judge_masks(watch, model, case)


@check("MASK-8", cases=long_cases)
def test_a_cache_for_the_whole_context_makes_no_mask_of_it(subject, case):
    tokens, _drawn = subject.on_device(case.token_ids()), case.weights()
    with Watch() as watch:
        model = subject.built(case)
        model.step(tokens, model.new_cache(case.batch, LONG))
    return judge_masks(watch, model, case)
