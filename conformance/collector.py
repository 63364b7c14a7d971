"""Gathers the records of all processes and renders them when the session ends, however it ends."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from conformance import deviations, session
from conformance.records import Record, Status, write_results
from conformance.report import summary
from conformance.schema import well_formed
from conformance.session import command_line, versions

if TYPE_CHECKING:
    from conformance.session import Run

RUN: pytest.StashKey[Run] = pytest.StashKey()
PROPERTY = "conformance"
CHECKPOINT_PROPERTY = "conformance-checkpoint"


JUDGED = frozenset(Status) - {Status.UNSUPPORTED, Status.SKIPPED}


class Collector:
    """Gathers the records of all processes and renders them when the session ends, however it ends."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.page: Path | None = None
        self.facts: dict[str, Any] = {}

    @property
    def run(self) -> Run:
        """The run that is going on."""
        return self.config.stash[RUN]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the records off a finished test; they ride on the report of its last phase."""
        if report.failed and not any(name == PROPERTY for name, _ in report.user_properties):
            self.run.take(unjudged(report))
        if report.when != "teardown":
            return
        for name, value in report.user_properties:
            if name == PROPERTY:
                self.run.take(session.load(str(value)))
            elif name == CHECKPOINT_PROPERTY:
                self.run.checkpoints.append(well_formed(json.loads(str(value))))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write results.json and the page of whatever was done."""
        if RUN not in self.config.stash or not self.run.records:
            return
        stopped = exitstatus == pytest.ExitCode.INTERRUPTED or session.shouldfail or session.shouldstop
        if not self.run.filtered and not stopped:
            outdated = deviations.outdated(self.run.records, self.run.deviations, versions())
            if outdated:
                self.run.take(outdated)
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if exitstatus == pytest.ExitCode.OK and not any(r.status in JUDGED for r in self.run.records):
            session.exitstatus = (
                pytest.ExitCode.NO_TESTS_COLLECTED
            )  # a green run that judged nothing misleads
        self.facts = self.run.facts(command_line(), interrupted=bool(stopped))
        self.page = render(self.run, self.facts)
        drafted = self.config.getoption("--write-deviations")
        if drafted:
            Path(drafted).write_text(deviations.draft(self.run.records, versions()), encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the sentence, a verdict per implementation, and where the page is."""
        if self.page is None:
            return
        terminalreporter.section("conformance")
        for line in verdict_lines(self.facts, self.run.records, self.page):
            terminalreporter.write_line(line)
        if os.environ.get("GITHUB_ACTIONS") == "true":
            for line in summary.annotations(self.run.records):
                terminalreporter.write_line(line)


def unjudged(report: pytest.TestReport) -> list[Record]:
    """An error on record for a check that broke off without a verdict, as when its process died."""
    item = re.search(r"\[([A-Z]+-\d+)-(.*)\](@|$)", report.nodeid)
    if item is None:
        return []
    crash = getattr(report.longrepr, "reprcrash", None)
    return [
        Record(
            requirement=item[1],
            implementation=item[2],
            variant="ops",
            dtype="any",
            status=Status.ERROR,
            reason=f"no verdict: {crash.message if crash else report.longrepr}"[:2000],
        )
    ]


def verdict_lines(facts: dict[str, Any], records: list[Record], page: Path) -> list[str]:
    """A line per implementation, the sentence, and where the page is."""
    names, known = facts["implementations"], facts["requirements"]
    return [*summary.verdicts(records, names, known), summary.heading(facts, records), f"page: {page}"]


def render(run: Run, facts: dict[str, Any]) -> Path:
    """Write results.json, the page, and the step summary where a CI asks for one; the page's path."""
    write_results(run.report, facts, run.records, run.checkpoints)  # first: whatever comes of the page
    from conformance.report.page import write_page  # noqa: PLC0415 - jinja2 is for those who get here

    page = write_page(run.report, facts, run.records, run.checkpoints)
    step_summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if step_summary:
        with Path(step_summary).open("a", encoding="utf-8") as file:
            file.write(summary.step_summary(facts, run.records))
    return page
