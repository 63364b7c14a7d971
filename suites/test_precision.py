"""ROPE 10 and 11, LOGITS-2: the bits of buffers, however a model came to its dtype, and autocast."""

import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from conformance import ModelCase, answers, asks, check, exact, judge, judge_same, strategies


def cast_cases(selection):
    for dtype in (d for d in ("bfloat16", "float16") if d in selection.dtypes):
        for variant, shape in selection.smalls():
            yield ModelCase(dtype=dtype, variant=variant, shape=shape)


@check("ROPE-10", cases=cast_cases)
def test_a_cast_changes_no_bit_of_the_frequencies(subject, case):
    """Tables of cos and sin may be rounded: once, from the same numbers."""
    model = subject.model(replace(case, dtype="float32"))
    return judge_same(model.cast(case.torch_dtype).held(), model.held(), case.config, "after the cast")


def saved_cases(selection):
    for dtype in selection.dtypes:
        for variant, shape in selection.smalls():
            yield ModelCase(dtype=dtype, variant=variant, shape=shape, tokens=9, batch=2)


@check("ROPE-11", cases=saved_cases)
def test_a_model_that_was_saved_and_loaded_computes_the_same_bits(subject, case):
    """By way of the meta device where that is how it loads: what is not saved is not there either."""
    model = subject.model(case)
    with tempfile.TemporaryDirectory() as folder:
        again = model.reloaded(Path(folder))
    before, after = (asks.logits_of(m, subject, case) for m in (model, again))
    return [
        judge_same(again.held(), model.held(), case.config, "after saving and loading"),
        exact(torch.equal(before, after), "the same bits", "the logits change by saving and loading"),
    ]


def autocast_cases(selection):
    for dtype in (d for d in ("bfloat16", "float16") if d in selection.dtypes):
        for variant, shape in selection.few():
            yield ModelCase(dtype=dtype, variant=variant, shape=shape, tokens=33)


def any_autocast_cases(selection):
    """Also of a model with outliers, whose squares float16 does not hold."""
    for case in autocast_cases(selection):
        yield from (case, replace(case, regime="outlier"))


@check(
    "LOGITS-2", cases=any_autocast_cases, draws=lambda s: strategies.models(s, only=("bfloat16", "float16"))
)
def test_logits_under_autocast(subject, case):
    """Of a float32 model whose weights are 16-bit numbers: what autocast rounds is what 16-bit rounds."""
    return judge(asks.autocast_logits(subject, case), answers.logits, case)


# θ = 2 makes all pairs fast, so that an angle rounded to 16 bit shows within a few hundred positions.
FAST = (("rope.rope_theta", 2.0), ("max_position_embeddings", 4096))


def long_autocast_cases(selection):
    return [replace(case, tokens=321, batch=1, but=FAST) for case in autocast_cases(selection)]


@check("ROPE-10", cases=long_autocast_cases)
def test_angles_stay_float32_under_autocast(subject, case):
    return judge(asks.autocast_logits(subject, case), answers.logits, case)
