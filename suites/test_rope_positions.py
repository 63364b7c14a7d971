"""ROPE 9-11 and 13: positions as values, angles in float32, no memory, and rotation of a part of the head."""

from dataclasses import replace

import torch

from conformance import (
    ModelCase,
    TableCase,
    Unsupported,
    answers,
    asks,
    check,
    exact,
    judge,
    judge_inv_freq,
    strategies,
)

SIXTEEN_BIT = ("bfloat16", "float16")


def placed_cases(*places):
    def cases(selection):
        for dtype, variant, shape in selection.models():
            for where in places:
                yield ModelCase(dtype=dtype, variant=variant, shape=shape, tokens=17, places=where)

    return cases


def drawn(*places):
    return lambda selection: strategies.models(selection, tokens=(2, 33), places=places)


@check("ROPE-9", cases=placed_cases("gaps", "reset", "backwards"), draws=drawn("gaps", "reset", "backwards"))
def test_attention_goes_by_position_ids_not_by_order(subject, case):
    return judge(asks.attention_module(subject, case), answers.attention_module, case)


@check("ROPE-9", cases=placed_cases("rows", "gaps"), draws=drawn("rows", "gaps"))
def test_logits_go_by_position_ids_of_every_row(subject, case):
    return judge(asks.logits(subject, case), answers.logits, case)


# θ = 2 makes all pairs fast, so that a frequency rounded to 16 bit shows within a few hundred positions.
FAST = (("rope.rope_theta", 2.0), ("max_position_embeddings", 4096))


def fast_cases(**fields):
    """16-bit alone: in float32, frequencies 8 ulp apart, which ROPE-1 allows, part far out."""

    def cases(selection):
        for dtype in (d for d in SIXTEEN_BIT if d in selection.dtypes):
            for variant, shape in selection.few():
                yield ModelCase(dtype=dtype, variant=variant, shape=shape, but=FAST, **fields)

    return cases


far_cases = fast_cases(tokens=17, places="far")


@check("ROPE-10", cases=far_cases)
def test_angles_are_float32_at_far_positions(subject, case):
    return judge(asks.attention_module(subject, case), answers.attention_module, case)


@check("ROPE-10", cases=fast_cases(tokens=321, batch=1))
def test_angles_are_float32_over_a_long_sequence(subject, case):
    """Where no positions can be asked for: a sequence long enough for rounded frequencies to show."""
    return judge(asks.logits(subject, case), answers.logits, case)


@check("ROPE-10", cases=far_cases)
def test_casting_a_built_model_does_not_round_its_angles(subject, case):
    """Far positions where a layer can be asked, a long sequence elsewhere."""
    model = subject.model(replace(case, dtype="float32")).cast(case.torch_dtype)
    try:
        return judge(asks.attention_module_of(model, subject, case), answers.attention_module, case)
    except Unsupported:
        long = replace(case, tokens=321, batch=1, places="run")
        return judge(asks.logits_of(model, subject, long), answers.logits, long)


def memory_cases(selection):
    """Shorter than the original context of the small configs, in which a longer one may leave traces."""
    for dtype, variant, shape in selection.models():
        yield ModelCase(dtype=dtype, variant=variant, shape=shape, tokens=9, batch=2)


@check("ROPE-11", cases=memory_cases)
def test_a_longer_sequence_and_another_model_leave_no_trace(subject, case):
    """Short, long, another model, short again; and long first in a model of its own: the same bits."""
    long = replace(case, tokens=65)
    other = replace(case, but=(("rope.rope_theta", 77.0), ("num_hidden_layers", 1)))
    model, fresh = subject.built(case), subject.built(case)
    before = asks.logits_of(model, subject, case).clone()
    after_short = asks.logits_of(model, subject, long).clone()
    between = judge(asks.logits_of(subject.built(other), subject, other), answers.logits, other)
    again = asks.logits_of(model, subject, case)
    at_once = asks.logits_of(fresh, subject, long)
    return [
        between,
        exact(torch.equal(before, again), "the same bits", "a short sequence changes after a long one"),
        exact(torch.equal(after_short, at_once), "the same bits", "a long one changes after a short one"),
    ]


def rule_cases(selection):
    return [
        TableCase(variant=v, shape=s, tokens=5, start=3, stride=7)
        for v, s in selection.smalls()
        if s == "gqa" and "float32" in selection.dtypes
    ]


@check("ROPE-11", cases=rule_cases)
def test_tables_of_another_rule_leave_no_trace(subject, case):
    positions = subject.on_device(case.positions())
    other = replace(case, but=(("rope.rope_theta", 77.0),))
    tables = subject.implementation.rope_tables
    before = torch.stack(tables(case.config, positions)).clone()
    between = torch.stack(tables(other.config, positions + 1))
    tables(case.config, subject.on_device(torch.arange(case.config.max_position_embeddings)))
    after = torch.stack(tables(case.config, positions))
    moved = not torch.equal(before, between)
    return [
        exact(torch.equal(before, after), "the same bits", "tables change after those of another rule"),
        exact(moved, "another θ", "tables of another θ, one position on, are the same as before"),
    ]


PARTS = tuple((("rope.partial_rotary_factor", part),) for part in (0.5, 0.25))


def part_cases(selection):
    for dtype, variant, shape in selection.models():
        for part in PARTS:
            yield ModelCase(dtype=dtype, variant=variant, shape=shape, tokens=17, but=part)


@check("ROPE-13", cases=part_cases, draws=lambda s: strategies.models(s, but=PARTS))
def test_the_first_part_of_a_head_turns_and_the_rest_passes(subject, case):
    y, answer = asks.attention(subject, case)
    return judge(y, answer, case)


def part_table_cases(selection):
    return [TableCase(variant=v, shape=s, but=part) for v, s in selection.few() for part in PARTS]


@check("ROPE-13", cases=part_table_cases)
def test_frequencies_are_those_of_the_part(subject, case):
    one = subject.on_device(torch.tensor([1]))
    cos, sin = (t.cpu() for t in subject.implementation.rope_tables(case.config, one))
    return judge_inv_freq(cos, sin, case)
