"""ROPE 1-2 and SCALE: frequencies and tables, plain and scaled."""

import torch

from conformance import (
    READ_AT,
    ModelCase,
    TableCase,
    answers,
    asks,
    check,
    judge,
    judge_inv_freq,
    judge_tables,
    strategies,
)

ALL_RULES = ("default", "linear", "llama3")


def table(subject, case, positions):
    return subject.implementation.rope_tables(case.config, subject.on_device(positions))


def at_one(subject, case):
    return table(subject, case, torch.tensor([1]))


def frequency_cases(*rules):
    """One case a config: the real ones carry the real θ, head width and context."""

    def cases(selection):
        pairs = strategies.table_configs(selection, rules)
        return [TableCase(variant=variant, shape=shape) for variant, shape in pairs]

    return cases


def judge_rule(subject, case):
    cos, sin = at_one(subject, case)
    return judge_inv_freq(cos.cpu(), sin.cpu(), case)


@check("ROPE-1", cases=frequency_cases("default"))
def test_frequencies_are_the_geometric_series_of_theta(subject, case):
    return judge_rule(subject, case)


@check("SCALE-1", cases=frequency_cases("linear"))
def test_linear_scaling_divides_every_frequency(subject, case):
    return judge_rule(subject, case)


@check("SCALE-3", cases=frequency_cases("llama3"))
def test_llama3_scaling_keeps_divides_and_blends(subject, case):
    return judge_rule(subject, case)


def factor_cases(selection):
    """Both published factors, so that neither can be hard-wired."""
    factors = {v.config.rope.factor for v in selection.variants if v.config.rope.rope_type == "llama3"}
    return frequency_cases("llama3")(selection) if len(factors) > 1 else []


@check("SCALE-4", cases=factor_cases)
def test_both_published_factors_are_expressible(subject, case):
    return judge_rule(subject, case)


def table_cases(selection):
    """Every config near zero, past its original context, and far out with few tokens."""
    for variant, shape in strategies.table_configs(selection, ALL_RULES):
        yield TableCase(variant=variant, shape=shape, tokens=65)
        yield TableCase(variant=variant, shape=shape, start=8190, tokens=5)
        yield TableCase(
            variant=variant, shape=shape, start=3, stride=4095, tokens=33 if shape == "real" else 5
        )


@check("ROPE-2", cases=table_cases, draws=lambda s: strategies.tables(s, ALL_RULES))
def test_tables_are_cos_and_sin_of_position_times_frequency(subject, case):
    cos, sin = (t.cpu() for t in table(subject, case, case.positions()))
    read = table(subject, case, torch.tensor(READ_AT))
    return judge_tables(cos, sin, tuple(t.cpu() for t in read), case)


def scaled_model_cases(*rules):
    """Whole models for those that expose no tables: loud, and longer than the small original context."""

    def cases(selection):
        names = {v.name for v in selection.variants if v.config.rope.rope_type in rules}
        return [
            ModelCase(variant=variant, shape=shape)
            for variant, shape in selection.smalls()
            if variant in names and "float32" in selection.dtypes
        ]

    return cases


@check("SCALE-1", cases=scaled_model_cases("linear"))
def test_linear_scaling_reaches_the_logits(subject, case):
    return judge(asks.logits(subject, case), answers.logits, case)


@check("SCALE-3", cases=scaled_model_cases("llama3"))
def test_llama3_scaling_reaches_the_logits(subject, case):
    return judge(asks.logits(subject, case), answers.logits, case)


@check("ROPE-1", cases=scaled_model_cases("default"))
def test_theta_reaches_the_logits(subject, case):
    return judge(asks.logits(subject, case), answers.logits, case)
