"""Specs of cases: what records print is read back, and whatever else is given is refused in words."""

import dataclasses

import pytest

from conformance import builtin_variants  # noqa: F401 - registers them
from conformance.case_spec import parse_case
from conformance.cases import Case
from conformance.checks import Selection

ODD = (
    3,
    0,
    -1,
    1.5,
    -0.5,
    1e999,
    "x",
    "",
    None,
    True,
    [],
    {},
    (),
    (0,),
    ("a", "b"),
    ((),),
    (("new",),),
    [[]],
    {1},
)
FIELDS = [(kind, field.name) for kind in Case.kinds.values() for field in dataclasses.fields(kind)]


def test_every_case_of_the_suites_is_read_back(checks):
    cases = {case for check in checks for case in check.cases(Selection())}
    assert len(cases) > 1000
    assert not [case for case in cases if parse_case(case.spec) != case]


@pytest.mark.parametrize(("kind", "field"), FIELDS, ids=[f"{kind.__name__}.{name}" for kind, name in FIELDS])
def test_whatever_a_field_is_set_to_is_a_case_or_refused_in_words(kind, field):
    told = [outcome(f"{kind.__name__}({field}={value!r})".replace("inf", "1e999")) for value in ODD]
    refused = [text for text in told if isinstance(text, str)]
    assert len(refused) >= len(ODD) // 2
    assert all(text.startswith("cannot read the case") for text in refused)
    assert all(parse_case(case.spec) == case for case in told if case not in refused)


def outcome(text):
    """The case, or why there is none; nothing but a ValueError may come."""
    try:
        return parse_case(text)
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("ModelCase(variant=3)", "variant is 3, a text is needed"),
        ("ModelCase(but=(('vocab_size', [1]),))", "tuples are needed"),
        ("NormCase(eps=-1)", "eps is -1, a number above 0 is needed"),
        ("NormCase(eps=1e999)", "eps is inf, a finite number is needed"),
        ("NormCase(seed=99999999999)", "a whole number of 0 … 2147483647 is needed"),
        ("NormCase(m=3)", "NormCase has no field 'm', only dtype, seed, n"),
        ("NormCase(**{'n': 3})", "NormCase has no field 'None'"),
        ("PaddedCase(lengths=3)", "lengths is 3, a tuple of whole numbers of 0 …"),
        ("PackedCase(reset=1)", "reset is 1, True or False is needed"),
        ("HistoryCase(events=3)", "events is 3, a tuple is needed"),
        ("HistoryCase(events=((3,),))", "event 0, (3,): expected one of ("),
        ("HistoryCase(events=(('step', 0, 1),))", "there is no cache 0 yet"),
        ("HistoryCase(events=(('new', 0, 1, 8, True),))", "kind is True, expected a whole number"),
        ("HistoryCase(events=(('new', 0, 1, 8, 0),))", "no logits are asked for"),
        ("SidewaysCase()", "there is no SidewaysCase"),
        ("NormCase(3)", "not a case"),
        ("NormCase(", "cannot read the case"),
        ("-" * 100_000 + "1", "cannot read the case '----"),
        ("NormCase(n=\0)", "null bytes"),
    ],
    ids=lambda text: text[:50],
)
def test_what_cannot_be_built_is_refused_with_what_is_needed(spec, words):
    with pytest.raises(ValueError, match="cannot read the case") as refused:
        parse_case(spec)
    assert words in str(refused.value)
    assert "expected what a record prints" in str(refused.value)
    assert len(str(refused.value)) < 3000
