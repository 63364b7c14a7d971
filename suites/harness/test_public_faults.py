"""Public reports: each is covered by a fault, waits for a requirement that is not live, or is outside."""

import pytest

from conformance.cli import main
from conformance.faults import catalogue
from conformance.faults.public import public_reports

ENTRY = '[NORM-EPS-99]\nwhat = "an eps of 1"\nsources = ["some/one#1"]\n'


def of(kind):
    return [r for r in public_reports().values() if r.kind == kind]


def test_every_report_is_covered_waiting_or_outside():
    """Reading them checks every name: faults that exist, requirements that are not live."""
    assert len(of("faults")) + len(of("waits")) + len(of("outside")) == len(public_reports()) >= 161


def test_few_reports_are_outside():
    assert len(of("outside")) <= len(public_reports()) / 10


def test_every_fault_with_a_public_source_stands_in_a_report_with_that_source():
    named = {(name, source) for r in of("faults") for name in r.faults for source in r.sources}
    public = {(f.name, f.source) for f in catalogue().values() if f.source != "classical"}
    assert public <= named


def test_reports_are_told_apart_by_their_words():
    words = [(r.what, r.sources) for r in public_reports().values()]
    assert len(set(words)) == len(words)


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ('faults = ["norm.eps-1"]', "names the fault 'norm.eps-1', which does not exist"),
        ('faults = ["mask.smallest-number"]', "'mask.smallest-number', which nothing can show: the weight"),
        ('waits = ["NORM-3"]', "waits for NORM-3, which is live now: name a fault that falls on it"),
        ('waits = ["eps"]', "waits for 'eps', expected the id of a requirement"),
        ("waits = []", "has waits = \\[\\], expected a list of texts"),
        ("outside = 1", "has outside = 1, expected text"),
        ("", "has the fields sources, what, expected what, sources and one of faults, waits, outside"),
        ('outside = "no"\nwaits = ["NORM-99"]', "has the fields outside, sources, waits, what, expected"),
        ('outside = "no"\nwhy = "no"', "has the fields outside, sources, what, why, expected"),
    ],
)
def test_an_entry_that_says_nothing_or_no_longer_the_truth_is_refused(rest, message):
    with pytest.raises(ValueError, match=f"NORM-EPS-99 .*{message}"):
        public_reports(ENTRY + rest)


def test_a_source_that_nobody_can_look_up_is_refused():
    with pytest.raises(ValueError, match="has the source 'hearsay', expected owner/repository#number or"):
        public_reports(ENTRY.replace("some/one#1", "hearsay") + 'waits = ["NORM-99"]')


def test_a_fault_from_a_report_that_does_not_name_it_is_refused():
    with pytest.raises(
        ValueError, match=r"the fault norm\.twice comes from ggml-org/llama\.cpp#1925, but no"
    ):
        public_reports(ENTRY + 'waits = ["NORM-99"]')


def test_what_is_no_toml_is_refused():
    with pytest.raises(ValueError, match=r"public\.toml is no TOML"):
        public_reports("[NORM")


def test_the_command_lists_every_report_with_its_answer_and_counts_them(capsys):
    assert main(["faults", "--public"]) == 0
    *lines, counts = capsys.readouterr().out.splitlines()
    answers = {line.split()[0]: line.split(maxsplit=2)[2] for line in lines}
    assert answers == {r.id: r.answer for r in public_reports().values()}
    assert answers["GQA-01"] == "attention.tiled"
    covered, waiting, outside = (len(of(kind)) for kind in ("faults", "waits", "outside"))
    assert counts == (
        f"{covered + waiting + outside} reports: {covered} covered by faults, "
        f"{waiting} waiting for requirements, {outside} outside"
    )
