"""docs/requirements.md says what is so, and nothing on it is missing."""

import re
from pathlib import Path

import pytest

from conformance.cli import main
from conformance.deviations import Deviation, read_deviations
from conformance.faults import catalogue
from conformance.requirements_page import NO_CHECK, NO_FAULT, PARTS, linked, page, section
from conformance.spec import Requirement, requirements

DOCS = Path(__file__).parent.parent.parent / "docs"
NEW = Requirement(id="NORM-999", statement="It holds.", source="somewhere", asks="law")


@pytest.fixture(scope="module")
def sections():
    """The page's sections by requirement."""
    parts = re.split(r"^### ", page(), flags=re.MULTILINE)[1:]
    return {text.partition("\n")[0]: text for text in parts}


def test_the_page_is_what_the_command_prints(capsys):
    assert main(["requirements", "--markdown"]) == 0
    kept = DOCS / "requirements.md"
    text = kept.read_text(encoding="utf-8") if kept.exists() else ""
    assert text == capsys.readouterr().out, "docs/requirements.md is stale: run `make docs`"


def test_every_requirement_has_a_section_in_the_order_of_the_spec(sections):
    assert list(sections) == list(requirements())


def test_every_requirement_has_statement_formula_source_check_and_fault(sections):
    lacking = [
        f"{id_}: {what}"
        for id_, requirement in requirements().items()
        for what, lacks in {
            "no statement": not requirement.statement,
            "no formula": not requirement.formula,
            "no source": not requirement.source,
            NO_CHECK: f"**checks**: {NO_CHECK}\n" in sections[id_],
            NO_FAULT: f"**faults**: {NO_FAULT}\n" in sections[id_],
        }.items()
        if lacks
    ]
    assert not lacking


def test_every_part_has_a_title():
    assert {id_.partition("-")[0] for id_ in requirements()} <= PARTS.keys()


def test_every_fault_stands_in_the_section_of_its_requirement(sections):
    for name, fault in catalogue().items():
        assert f"`{name}` ({linked(fault.source)})" in sections[fault.requirement]


def test_every_deviation_stands_in_the_section_of_its_requirement(sections):
    for deviation in read_deviations():
        text = sections[deviation.requirement]
        assert f"{deviation.implementation} (" in text
        assert deviation.reason in text


def test_files_that_the_page_links_to_exist(sections):
    for target in re.findall(r"\]\((?!#|https:)(.+?)\)", "".join(sections.values())):
        assert (DOCS / target).is_file()


def test_what_nothing_proves_or_breaks_yet_is_said_to_be_so():
    assert list(section(NEW, []))[-2:] == ["- **checks**: no check yet", "- **faults**: no fault yet"]


def test_implementations_that_deviate_for_one_reason_share_a_line():
    entries = [
        Deviation(
            requirement=NEW.id, implementation=n, variant="*", dtype="*", versions={"x": ">=1"}, reason="Why."
        )
        for n in ("one", "two")
    ]
    assert list(section(NEW, entries))[-1] == "- **deviates**: one (x >=1), two (x >=1). Why."


def test_reports_and_papers_are_links():
    assert linked("arXiv 1910.07467, eq. 4; report a/b.c#12") == (
        "[arXiv 1910.07467](https://arxiv.org/abs/1910.07467), eq. 4; "
        "report [a/b.c#12](https://github.com/a/b.c/issues/12)"
    )
