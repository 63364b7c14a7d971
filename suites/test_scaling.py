"""SCALE 8-11: no field of a frequency rule is dropped, whatever spells it and whoever applies it."""

import copy
from dataclasses import replace

import torch

from conformance import (
    ModelCase,
    TableCase,
    agree,
    answers,
    asks,
    check,
    config_spellings,
    exact,
    judge_inv_freq,
    strategies,
)
from reference_impl.config import ROPE_FIELDS

# Values that no published config has, so that none can come from a default.
OTHER = {
    "rope_theta": 12345.0,
    "factor": 5.0,
    "low_freq_factor": 2.0,
    "high_freq_factor": 7.0,
    "original_max_position_embeddings": 1000,
}
RULES = tuple(ROPE_FIELDS)


def field_changes(rope_type, context):
    """One changed field each; the original context of a small config is small."""
    for name in ("rope_theta", *ROPE_FIELDS[rope_type]):
        value = context if name == "original_max_position_embeddings" else OTHER[name]
        yield ((f"rope.{name}", value),)


def rules(selection):
    """One variant for each frequency rule that is selected."""
    firsts = {v.config.rope.rope_type: v for v in reversed(selection.variants)}
    return [(firsts[rule].name, rule) for rule in RULES if rule in firsts]


def table_cases(selection):
    for variant, rule in rules(selection):
        for but in field_changes(rule, OTHER["original_max_position_embeddings"]):
            yield TableCase(variant=variant, shape="real", but=but)


def judge_rule(cos, sin, case):
    return judge_inv_freq(cos.cpu(), sin.cpu(), case)


@check("SCALE-8", cases=table_cases)
def test_every_field_of_the_rule_counts_in_the_tables(subject, case):
    one = subject.on_device(torch.tensor([1]))
    return judge_rule(*subject.implementation.rope_tables(case.config, one), case)


def model_cases(selection):
    """In float32, over two of the small original contexts: what is dropped leaves the logits as they were."""
    for variant, rule in rules(selection):
        if "float32" in selection.dtypes:
            for but in field_changes(rule, 20):
                yield ModelCase(variant=variant, batch=1, but=but)


@check("SCALE-8", cases=model_cases)
def test_every_field_of_the_rule_reaches_the_logits(subject, case):
    """A law without an oracle: the logits change with the field."""
    changed, before = asks.logits(subject, case), asks.logits(subject, replace(case, but=()))
    same = agree(changed, before, answers.logits, case).passed
    ((name, value),) = case.but
    return exact(not same, "change of a field", f"the logits are the same with {name} = {value!r}")


def stepped_cases(selection):
    """The original context of the small configs is 32: prefill crosses it, decode stands beyond."""
    for dtype in selection.dtypes:
        for variant, rule in rules(selection):
            if rule != "default":
                yield ModelCase(dtype=dtype, variant=variant, tokens=45, chunks=(40, 1, 1, 1, 1, 1), batch=2)


@check("SCALE-9", cases=stepped_cases)
def test_decode_uses_the_table_of_prefill(subject, case):
    return agree(asks.stepped(subject, case), asks.logits(subject, case), answers.logits, case)


def spelling_cases(selection):
    return [TableCase(variant=v, shape=s) for v, s in strategies.table_configs(selection, RULES)]


def spelt(subject, config_json):
    one = subject.on_device(torch.tensor([1]))
    return subject.implementation.json_rope_tables(config_json, one)


@check("SCALE-10", cases=spelling_cases)
def test_every_spelling_gives_the_same_frequencies(subject, case):
    verdicts = []
    for name, config_json in config_spellings(case.config).items():
        verdict = judge_rule(*spelt(subject, config_json), case)
        verdicts.append(replace(verdict, reason=verdict.reason and f"spelt as {name}: {verdict.reason}"))
    return verdicts


@check("SCALE-11", cases=spelling_cases)
def test_the_config_of_the_caller_is_left_alone(subject, case):
    verdicts = []
    for name, config_json in config_spellings(case.config).items():
        before = copy.deepcopy(config_json)
        spelt(subject, config_json)
        touched = [
            f"{field} is now {config_json.get(field)}"
            for field in before | config_json
            if config_json.get(field) != before.get(field)
        ]
        verdicts.append(exact(not touched, "config unchanged", f"spelt as {name}, {'; '.join(touched)}"))
    return verdicts
