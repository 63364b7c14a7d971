"""What is kept of a history of caches: the kinds of its caches, and of a failure a file that shows it."""

import ast

import pytest

from conformance.cases import HistoryCase, ModelCase
from conformance.implementations.reference import Reference
from conformance.records import Record, Status
from conformance.subject import Subject
from conformance.tally import Tally

CASE = HistoryCase(events=(("new", 0, 2, 8, 0), ("step", 0, 3), ("new", 1, 1, 8, 1), ("step", 1, 3)))


class Twofold(Reference):
    """The reference with two kinds of cache, of which one may be wrong."""

    def __init__(self, wrong=""):
        super().__init__()
        self.wrong = wrong

    def build(self, config, weights):
        model, made = super().build(config, weights), {}
        make, step = model.new_cache, model.step

        def new_cache(batch, capacity, kind=""):
            cache = make(batch, capacity)
            made[id(cache)] = (cache, kind)
            return cache

        model.new_cache = new_cache
        model.cache_kinds = lambda: ("growing", "fixed")
        model.step = lambda tokens, cache: (
            step(tokens, cache) * (1.1 if made[id(cache)][1] == self.wrong else 1)
        )
        return model


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def judged(checks):
    """The record of a case of the check of any history."""
    check = next(c for c in checks if c.title == "test_any_history_of_a_cache_gives_the_logits_of_one_pass")
    return lambda implementation, case=CASE: Tally(check, Subject(implementation)).judge(case)


def test_a_record_of_several_kinds_of_cache_names_the_kind_of_each(judged):
    record = judged(Twofold())
    assert record.status is Status.PASS
    assert record.facts["kinds of cache"] == "cache 0 is growing, cache 1 is fixed"
    assert (record.reason, record.script) == ("", "")


def test_a_record_of_one_kind_of_cache_names_none(judged):
    assert "kinds of cache" not in judged(Reference()).facts


def test_a_failure_names_the_kinds_in_its_reason_and_brings_its_file(judged):
    record = judged(Twofold(wrong="fixed"))
    assert record.status is Status.FAIL
    assert record.reason == "event 3, ('step', 1, 3); cache 0 is growing, cache 1 is fixed"
    assert ast.parse(record.script)


def test_what_raises_in_a_history_brings_its_file_too(judged):
    class Broken(Twofold):
        def build(self, config, weights):
            model = super().build(config, weights)
            model.step = lambda *_: 1 / 0
            return model

    record = judged(Broken())
    assert record.status is Status.ERROR
    assert record.reason.startswith("ZeroDivisionError")
    assert "cache 1 is fixed" in record.reason
    assert ast.parse(record.script)


def test_a_model_that_cannot_be_built_has_no_kinds_and_still_a_file(judged):
    class Unbuilt(Reference):
        def build(self, *_):
            raise RuntimeError("not today")

    record = judged(Unbuilt())
    assert record.reason.startswith("RuntimeError: not today (at ")
    assert ast.parse(record.script)


def test_a_twin_has_the_file_of_its_own_variant(checks):
    check = next(c for c in checks if c.title == "test_what_was_rolled_back_had_never_been")
    tally = Tally(check, Subject(Twofold(wrong="fixed")))
    one = HistoryCase(variant="llama-2-7b", events=CASE.events)
    other = HistoryCase(variant="code-llama-7b", events=CASE.events)
    assert [tally.judge(case).script.partition("\n")[0] for case in (one, other)] == [
        f'"""{case.spec} on reference"""' for case in (one, other)
    ]


def test_a_case_that_is_no_history_has_no_file(judged):
    assert judged(Twofold(), ModelCase()).script == ""


def test_a_file_travels_with_its_record():
    place = {"requirement": "CACHE-1", "implementation": "mine", "variant": "ops", "dtype": "float32"}
    record = Record(**place, status=Status.FAIL, script="a = 1\n")
    assert Record.from_json(record.to_json()) == record
