"""python -m conformance power: every seeded fault against the suites' own checks."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conformance.power.judge import Cell
    from conformance.power.matrix import Matrix
    from conformance.power.workers import Chunk

INTERRUPTED = 130  # as a shell says it of a process that Ctrl-C ended
EVERY = 10.0  # seconds from one line of progress to the next


def add(commands: Any) -> None:
    """The command's options."""
    command = commands.add_parser("power", help="run the suites' checks on every seeded fault")
    command.add_argument("--full", action="store_true", help="every fault on every requirement (minutes)")
    command.add_argument(
        "--profile",
        default="standard",
        choices=("quick", "standard", "thorough"),
        help="how far to go for a fault that survives the covering lists (default: standard)",
    )
    command.add_argument("--fault", action="append", default=[], metavar="NAME", help="this one alone")
    command.add_argument("--jobs", type=int, default=2, help="processes, of one thread each (default: 2)")
    command.add_argument("--report", default="reports", metavar="DIR", help="its folder (default: reports)")


def run(options: argparse.Namespace) -> int:
    """Judge, keep and tell; 0 where every fault is noticed that can be, 1 where not, 130 after Ctrl-C.

    Raises:
        ValueError: an unknown fault, no process to work with, or a results.json that cannot be added to.
    """
    from conformance.faults import catalogue, named  # noqa: PLC0415 - the lists of other commands need none
    from conformance.options import writable  # noqa: PLC0415
    from conformance.power import results  # noqa: PLC0415
    from conformance.power.matrix import Matrix  # noqa: PLC0415
    from conformance.power.workers import deal, spread  # noqa: PLC0415
    from conformance.spec import requirements  # noqa: PLC0415

    if options.jobs < 1:
        raise ValueError(f"--jobs {options.jobs}: expected the number of processes, at least 1")
    names = dict.fromkeys(options.fault or catalogue())  # each once, however often it is named
    matrix = Matrix(
        faults=[named(name) for name in names], requirements=list(requirements()), whole=not options.fault
    )
    folder = writable(Path(options.report))
    results.check(folder)
    chunks = deal(matrix.faults, matrix.requirements, options.profile, full=options.full)
    started = time.time()
    interrupted = measure(matrix, chunks, lambda todo: spread(todo, options.jobs))
    facts = {
        "command": shlex.join(["python", "-m", "conformance", *sys.argv[1:]]),
        "started": started,
        "seconds": round(time.time() - started, 1),
        "jobs": options.jobs,
        "profile": options.profile,
        "full": options.full,
        "interrupted": interrupted,
    }
    page = results.keep(folder, facts, matrix.to_json())
    problems = matrix.problems()
    lines = [matrix.line(fault) for fault in matrix.faults if options.fault]
    print(*lines, *problems, f"page: {page}", matrix.sentence(), sep="\n")  # noqa: T201
    return INTERRUPTED if interrupted else int(bool(problems))


def measure(matrix: Matrix, chunks: list[Chunk], spread: Callable[[list[Chunk]], Iterator[Cell]]) -> bool:
    """Fill the matrix; whether Ctrl-C came first. What is measured by then is kept.

    Args:
        matrix: to be filled.
        chunks: what to judge.
        spread: judges them.
    """
    total = sum(len(chunk.faults) for chunk in chunks)
    try:
        for cell in told(spread(chunks), total):
            matrix.take(cell)
    except KeyboardInterrupt:
        return True
    return False


def told(cells: Iterable[Cell], total: int) -> Iterator[Cell]:
    """The same cells, with a line of progress now and then."""
    started = last = time.monotonic()
    for done, cell in enumerate(cells, 1):
        yield cell
        now = time.monotonic()
        if now - last >= EVERY:
            last = now
            print(f"{done} of {total} cells, {now - started:.0f} s", flush=True)  # noqa: T201
