"""The pytest plugin: options, one test per requirement and implementation, records, and the page at the end.

It is thin: hooks over plain functions elsewhere. Importing it imports no torch. It is loaded by conftest.py,
by `python -m conformance check`, or with -p conformance.plugin, never by being installed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from conformance import deviations, session
from conformance.collector import CHECKPOINT_PROPERTY, PROPERTY, RUN, Collector
from conformance.implementations import registry
from conformance.records import Record, Status
from conformance.report import summary
from conformance.spec import requirement

if TYPE_CHECKING:
    from conformance.checks import Selection
    from conformance.session import Run
    from conformance.subject import Subject

PROFILES = ("quick", "standard", "thorough")
SUITES = Path(__file__).resolve().parent.parent / "suites"
APART = frozenset({"harness", "bench"})  # no conformance suites


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the suites."""
    group = parser.getgroup("conformance", "llama-conformance")
    add = group.addoption
    add(
        "--impl",
        action="append",
        default=[],
        metavar="NAME|FILE.py[:build]|MODULE:build",
        help="implementation to judge; may be given several times (default: all that are installed)",
    )
    add("--variant", action="append", default=[], metavar="NAME", help="judge these variants only")
    add("--requirement", action="append", default=[], metavar="ID", help="prove these requirements only")
    add("--dtype", action="append", default=[], metavar="NAME", help="float32, bfloat16, float16")
    add("--device", default="cpu", help="where implementations compute (default: cpu)")
    add(
        "--profile",
        default="standard",
        metavar="|".join(PROFILES),
        help="quick: covering lists; standard: and some draws; thorough: and many (default: standard)",
    )
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
    chosen = ", ".join(
        f"{o}={config.getoption(o)}"
        for o in ("--impl", "--variant", "--dtype", "--requirement")
        if config.getoption(o)
    )
    lines = [f"conformance: profile {config.getoption('--profile')}, {chosen or 'everything installed'}"]
    return lines + ([f"conformance: {absent}"] if absent else [])


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Collect harness and bench only when they are named, whichever ini file is in charge."""
    return True if collection_path.parent == SUITES and collection_path.name in APART else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item per check and implementation."""
    if hasattr(metafunc.function, "requirement") and "subject" in metafunc.fixturenames:
        names = metafunc.config.stash[RUN].implementations
        ids = [f"{metafunc.function.requirement}-{name}" for name in names]
        metafunc.parametrize("subject", names, indirect=True, ids=ids)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what --requirement does not name; keep a check's items on the worker that has its oracle."""
    wanted = set(config.getoption("--requirement"))
    kept: list[pytest.Item] = []
    dropped: list[pytest.Item] = []
    for item in items:
        proved = getattr(getattr(item, "function", None), "requirement", None)
        if proved is None:
            kept.append(item)
            continue
        if config.pluginmanager.hasplugin("xdist"):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("[")[0]))
        (kept if not wanted or proved in wanted else dropped).append(item)
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
        reason = describe_exception(error)
    # Outside of the handler, so that pytest does not print the whole chain once for every check.
    record = Record(
        requirement=request.function.requirement,
        implementation=request.param,
        variant="ops",
        dtype="any",
        status=Status.ERROR,
        reason=reason,
    )
    request.node.user_properties.append((PROPERTY, session.dump([record])))
    pytest.fail(f"{record.implementation} cannot be used: {record.reason}", pytrace=False)


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
        statements = {r.requirement: requirement(r.requirement).statement for r in records}
        pytest.fail("\n\n".join(summary.failures(records, 5, statements)), pytrace=False)
    if all(record.status in {Status.SKIPPED, Status.UNSUPPORTED} for record in records):
        pytest.skip("; ".join(sorted({f"{record.status}: {record.reason}" for record in records})))
