"""The pytest plugin: options, one test per requirement and implementation, records, and the page at the end.

It is thin: hooks over plain functions elsewhere. Importing it imports no torch. It is loaded by conftest.py, by
`python -m conformance check`, or with -p conformance.plugin, never by being installed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from conformance import deviations, session
from conformance.implementations import registry
from conformance.records import Record, Status, write_results
from conformance.report import summary
from conformance.session import versions

if TYPE_CHECKING:
    from conformance.checks import Selection
    from conformance.session import Run
    from conformance.tally import Subject

RUN: pytest.StashKey[Run] = pytest.StashKey()
PROPERTY = "conformance"
CHECKPOINT_PROPERTY = "conformance-checkpoint"
PROFILES = ("quick", "standard", "thorough")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the suites."""
    group = parser.getgroup("conformance", "llama-conformance")
    add = group.addoption
    add("--impl", action="append", default=[], metavar="NAME|FILE.py[:build]|MODULE:build",
        help="implementation to judge; may be given several times (default: all that are installed)")
    add("--variant", action="append", default=[], metavar="NAME", help="judge these variants only")
    add("--requirement", action="append", default=[], metavar="ID", help="prove these requirements only")
    add("--dtype", action="append", default=[], metavar="NAME", help="float32, bfloat16, float16")
    add("--device", default="cpu", help="where implementations compute (default: cpu)")
    add("--profile", default="standard", metavar="|".join(PROFILES),
        help="quick: covering lists; standard: and some draws; thorough: and many (default: standard)")
    add("--seed", type=int, default=None, help="seed of the draws (default: 0; thorough: a new one, printed)")
    add("--case", default="", metavar="SPEC", help="judge one case alone, as a record spells it")
    add("--checkpoint", default="", metavar="NAME|FOLDER|FILE.gguf", help="a trained checkpoint for REAL-1")
    add("--report", default="reports", metavar="DIR", help="where results.json and index.html go")
    add("--deviations", default="", metavar="FILE", help="known disagreements of your own (TOML)")
    add("--write-deviations", default="", metavar="FILE", help="draft a deviations file from the failures")


def pytest_configure(config: pytest.Config) -> None:
    """Gather records in the process that sees every report."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Collector(config), "conformance-collector")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Read the options before anything is collected, so that a typo costs no time."""
    try:
        session.config.stash[RUN] = make_run(session.config)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error


def make_run(config: pytest.Config) -> Run:
    """The run that the options describe.

    Raises:
        ValueError: an option names something that does not exist; lists what does.
    """
    from conformance import options  # noqa: PLC0415 - imports torch

    return options.make_run(config.getoption)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Echo what was selected, so that a typo shows."""
    absent = "; ".join(f"{name} not installed ({how})" for name, how in registry.absent().items())
    chosen = ", ".join(f"{o}={config.getoption(o)}" for o in ("--impl", "--variant", "--dtype", "--requirement")
                       if config.getoption(o))
    lines = [f"conformance: profile {config.getoption('--profile')}, {chosen or 'everything installed'}"]
    return lines + ([f"conformance: {absent}"] if absent else [])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item per check and implementation."""
    if hasattr(metafunc.function, "check") and "subject" in metafunc.fixturenames:
        names = metafunc.config.stash[RUN].implementations
        metafunc.parametrize("subject", names, indirect=True, ids=names)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what --requirement does not name; keep a check's items on one worker, which has its oracle."""
    wanted = set(config.getoption("--requirement"))
    kept, dropped = [], []
    for item in items:
        check = getattr(getattr(item, "function", None), "check", None)
        if check is None:
            kept.append(item)
            continue
        if config.pluginmanager.hasplugin("xdist"):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("[")[0]))
        (kept if not wanted or check.requirement in wanted else dropped).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


@pytest.fixture
def subject(request: pytest.FixtureRequest) -> Subject:
    """The implementation under test; one that cannot even be made is an error on record."""
    from conformance.tally import describe_exception  # noqa: PLC0415 - imports torch

    try:
        return request.config.stash[RUN].subject(request.param)
    except Exception as error:  # noqa: BLE001 - a user's module may raise anything when it is imported
        record = Record(
            requirement=request.function.check.requirement,
            implementation=request.param,
            variant="ops",
            dtype="any",
            status=Status.ERROR,
            reason=describe_exception(error),
        )
        request.node.user_properties.append((PROPERTY, session.dump([record])))
        pytest.fail(f"{request.param} cannot be used: {record.reason}", pytrace=False)


@pytest.fixture
def selection(request: pytest.FixtureRequest) -> Selection:
    """What the run covers."""
    return request.config.stash[RUN].selection


@pytest.fixture
def checkpoint(request: pytest.FixtureRequest) -> str:
    """The trained checkpoint asked for, or ""."""
    return request.config.stash[RUN].checkpoint


@pytest.fixture
def keep_checkpoint(request: pytest.FixtureRequest) -> Callable[[dict[str, Any]], None]:
    """Attach what was seen of a checkpoint to the test."""

    def keep(seen: dict[str, Any]) -> None:
        request.node.user_properties.append((CHECKPOINT_PROPERTY, json.dumps(seen, allow_nan=False)))

    return keep


@pytest.fixture
def keep_records(request: pytest.FixtureRequest) -> Callable[[list[Record]], None]:
    """Attach records to the test, where they survive worker processes, and decide how it ends."""

    def keep(records: list[Record]) -> None:
        run = request.config.stash[RUN]
        judged = deviations.apply(records, run.deviations, session.versions())
        request.node.user_properties.append((PROPERTY, session.dump(judged)))
        conclude(judged)

    return keep


def conclude(records: list[Record]) -> None:
    """End a test as its records say: fail with texts that stand alone, or skip aloud."""
    if any(record.status.is_bad for record in records):
        pytest.fail("\n\n".join(summary.failures(records, limit=5)), pytrace=False)
    if all(record.status in {Status.SKIPPED, Status.UNSUPPORTED} for record in records):
        pytest.skip("; ".join(sorted({f"{record.status}: {record.reason}" for record in records})))


class Collector:
    """Gathers the records of all processes and renders them when the session ends, however it ends."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.page: Path | None = None

    @property
    def run(self) -> Run:
        """The run that is going on."""
        return self.config.stash[RUN]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the records off a finished test; they ride on the report of its last phase."""
        if report.when != "teardown":
            return
        for name, value in report.user_properties:
            if name == PROPERTY:
                self.run.take(session.load(str(value)))
            elif name == CHECKPOINT_PROPERTY:
                self.run.checkpoints.append(json.loads(str(value)))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write results.json and the page of whatever was done."""
        if RUN not in self.config.stash or not self.run.records:
            return
        if not self.run.filtered and exitstatus != pytest.ExitCode.INTERRUPTED:
            for record in stale_records(self.run):
                self.run.take([record])
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
        self.page = render(self.run, interrupted=exitstatus == pytest.ExitCode.INTERRUPTED)
        drafted = self.config.getoption("--write-deviations")
        if drafted:
            Path(drafted).write_text(deviations.draft(self.run.records, versions()), encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the sentence, a verdict per implementation, and where the page is."""
        if self.page is None:
            return
        terminalreporter.section("conformance")
        for line in summary.verdicts(self.run.records):
            terminalreporter.write_line(line)
        terminalreporter.write_line(summary.sentence(self.run.records))
        terminalreporter.write_line(f"page: {self.page}")
        if os.environ.get("GITHUB_ACTIONS") == "true":
            for line in summary.annotations(self.run.records):
                terminalreporter.write_line(line)


def stale_records(run: Run) -> list[Record]:
    """An error for each deviation that fits nothing any more."""
    return [
        Record(
            requirement=entry.requirement,
            implementation=entry.implementation,
            variant=entry.variant,
            dtype=entry.dtype,
            status=Status.ERROR,
            reason=f"stale deviation in {entry.source}: it fits no record of this run; remove or mend it",
        )
        for entry in deviations.stale(run.records, run.deviations, versions())
    ]


def render(run: Run, *, interrupted: bool) -> Path:
    """Write results.json, the page, and the step summary where a CI asks for one; the page's path."""
    from conformance.report.page import write_page  # noqa: PLC0415 - jinja2 is for those who get here

    facts = run.facts(session.command_line(), interrupted=interrupted)
    write_results(run.report, facts, run.records, run.checkpoints)
    page = write_page(run.report, facts, run.records, run.checkpoints)
    step_summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if step_summary:
        with Path(step_summary).open("a", encoding="utf-8") as file:
            file.write(summary.step_summary(facts, run.records))
    return page
