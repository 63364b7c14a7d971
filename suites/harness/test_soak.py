"""Soak: other seeds draw other cases, what fails is told and turns the exit status."""

from dataclasses import replace

import pytest

from conformance import NormCase, Subject, check, deviations, exact, strategies
from conformance.checks import PROFILE_DRAWS, Selection
from conformance.cli import main
from conformance.deviations import Deviation
from conformance.implementations.reference import Reference
from conformance.records import Status
from conformance.soak import Outcome, Round, Soak, drawn_checks, perform, performed, rounds

pytestmark = pytest.mark.usefixtures("one_thread")

STANDARD = Selection(profile="standard")


def first_norm_check():
    return next(at for at, check in enumerate(drawn_checks()) if check.requirement == "NORM-1")


def outcome(seed, *names):
    return perform(Round(at=first_norm_check(), seed=seed, profile="standard", names=names))


def soaked(*outcomes):
    soak = Soak()
    for each in outcomes:
        soak.add(each)
    return soak


def test_every_check_that_draws_takes_part_by_every_seed_and_no_other():
    todo = rounds(["reference"], range(2), "standard")
    assert [one.seed for one in todo] == [0] * len(drawn_checks()) + [1] * len(drawn_checks())
    assert all(check.draws is not None for check in drawn_checks())


def test_each_seed_draws_other_cases_by_every_strategy():
    for each in {one.draws: one for one in drawn_checks()}.values():
        idle = replace(each, body=lambda _subject, _case: exact(True, "nothing", ""))
        drawn = [
            {r.case for r in idle.explore(Subject(Reference()), replace(STANDARD, seed=s))} for s in (0, 1)
        ]
        assert drawn[1] - drawn[0], each.title


def test_the_same_seed_draws_the_same_cases_for_every_implementation():
    assert outcome(3, "reference").cases == outcome(3, "torch").cases


def test_checks_of_one_strategy_draw_different_cases_by_one_seed():
    norms = rounds(["reference"], [0], "standard", ["NORM-1", "NORM-3", "NORM-5"])
    first, *others = [perform(one).cases for one in norms]
    assert others
    assert all(cases != first for cases in others)


def test_only_drawn_cases_are_judged_and_each_is_counted():
    given = outcome(0, "reference")
    assert len(given.records) == PROFILE_DRAWS["standard"]
    assert soaked(given).examples == PROFILE_DRAWS["standard"]
    covering = {case.spec for case in drawn_checks()[first_norm_check()].covering(STANDARD)}
    assert not given.cases <= covering


def test_every_passing_example_gives_its_headroom_and_not_the_worst_alone():
    given = outcome(0, "reference")
    soak = soaked(given)
    assert sum(map(len, soak.headrooms.values())) == len(given.records)
    assert soak.closest.headroom == max(r.headroom for r in given.records)


def test_a_seed_that_draws_nothing_new_is_told_and_no_success():
    given = outcome(0, "reference")
    again = Outcome(
        round=Round(at=given.round.at, seed=1, profile="standard", names=()), records=given.records
    )
    soak = soaked(given, again)
    assert not soak.good
    assert "seed 1 draws nothing new for test_divides_each_row" in "\n".join(soak.lines())
    assert soaked(given, outcome(1, "reference")).good


def test_nothing_judged_is_no_success():
    assert not soaked(Outcome(round=Round(at=0, seed=0, profile="standard", names=()), records=[])).good


def test_a_deviation_that_is_listed_is_no_failure(monkeypatch):
    known = Deviation(
        requirement="NORM-1",
        implementation="fault:norm.zeros",
        variant="*",
        dtype="*",
        versions={},
        reason="on purpose",
    )
    monkeypatch.setattr(deviations, "read_deviations", lambda: [known])
    soak = soaked(outcome(0, "fault:norm.zeros"))
    assert soak.explained == 1
    assert soak.good


def test_the_command_prints_a_table_and_counts(capsys):
    assert (
        main(["soak", "--seeds", "2", "--requirement", "NORM-1", "--impl", "reference", "--jobs", "1"]) == 0
    )
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[:2] == [
        "| requirement | dtype | examples | p50 | p99 | max |",
        "|---|---|---|---|---|---|",
    ]
    assert [line.split(" | ")[:2] for line in lines[2:5]] == [
        ["| NORM-1", dtype] for dtype in ("bfloat16", "float16", "float32")
    ]
    assert lines[-1].startswith("40 examples, ")
    assert lines[-1].endswith(" of them different; 0 failures, 0 listed deviations")
    assert err.startswith("after seed 0: 20 examples, ")


def test_what_was_judged_before_an_interrupt_is_told(capsys, monkeypatch):
    def interrupted(todo, _jobs):
        yield perform(todo[0])
        raise KeyboardInterrupt

    monkeypatch.setattr("conformance.soak.performed", interrupted)
    assert main(["soak", "--requirement", "NORM-1", "--impl", "reference"]) == 130
    *_, counts, last = capsys.readouterr().out.splitlines()
    assert counts.startswith("20 examples, ")
    assert last == "interrupted in seed 0"


def test_a_seeded_fault_is_told_once_with_its_smallest_case_and_a_command_and_exits_1(capsys):
    arguments = ["--seeds", "2", "--requirement", "NORM-1", "--impl", "fault:norm.zeros", "--jobs", "1"]
    assert main(["soak", *arguments]) == 1
    lines = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("fail: "))
    assert lines[at].startswith("fail: NORM-1 on fault:norm.zeros, ops, float32: worst element, headroom ")
    assert lines[at + 1].startswith("  case   NormCase(dtype='float32', ")
    assert "pytest suites/test_norm.py::test_divides_each_row" in lines[at + 2]
    assert "1 failures" in lines[-1]


def test_rounds_of_two_processes_come_in_their_order():
    todo = rounds(["reference"], range(1), "standard", ["NORM-1", "NORM-5"])
    given = list(performed(todo, 2))
    assert [each.round for each in given] == todo
    assert [len(each.records) for each in given] == [PROFILE_DRAWS["standard"]] * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--profile", "quick"], "profile 'quick' draws nothing; expected one of standard, thorough"),
        (["--requirement", "WEIGHT-1"], "no check of WEIGHT-1 draws cases"),
        (["--requirement", "NORM-99"], "unknown requirement"),
        (["--impl", "nobody"], "unknown implementation 'nobody'"),
        (["--jobs", "0"], "--jobs is 0, expected at least one process"),
    ],
)
def test_what_cannot_be_soaked_is_refused(arguments, message, capsys):
    with pytest.raises(SystemExit) as left:
        main(["soak", *arguments])
    assert left.value.code == 2
    assert message in capsys.readouterr().err


def test_a_failure_that_does_not_come_back_is_kept_and_said():
    asked = []

    def sometimes(_subject, case):
        asked.append(case)
        return exact(len(asked) != 3, "law", "on purpose")

    made = check("NORM-1", cases=lambda _selection: [NormCase()], draws=strategies.norms)(sometimes).check
    *others, last = made.explore(Subject(Reference()), STANDARD)
    assert {r.status for r in others} <= {Status.PASS}
    assert last.status is Status.FAIL
    assert last.reason == "not every time on the same case; on purpose"
