"""Cells judged in processes of their own: a fault that ends one of them loses no more than its own cell."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import signal
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

from conformance.faults import Fault, named
from conformance.power.judge import Cell, Fate, checks_of, judged
from conformance.power.places import COMPARISONS

PLAIN = COMPARISONS[0]  # what people compare who compare logits in float32
MOST = 32  # faults of one chunk: few enough that the last worker does not work alone for long


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """What a worker is dealt at once: one requirement, so that oracles are computed once for many faults.

    Args:
        requirement: whose checks are run.
        faults: names.
        profile: the largest that is tried.
    """

    requirement: str
    faults: tuple[str, ...]
    profile: str = "quick"

    def parts(self) -> Iterator[Chunk]:
        """The same in pieces of a size to be dealt."""
        for start in range(0, len(self.faults), MOST):
            yield replace(self, faults=self.faults[start : start + MOST])


def deal(faults: Sequence[Fault], requirements: Sequence[str], profile: str, *, full: bool) -> list[Chunk]:
    """What is to be judged: declared requirements, then the plain comparison of logits, then all others.

    Args:
        faults: which.
        requirements: in the order of the spec.
        profile: of the declared requirements; for the others the covering lists are enough.
        full: every requirement for every fault.
    """
    declared = [
        Chunk(requirement=r, faults=tuple(f.name for f in faults if f.requirement == r), profile=profile)
        for r in requirements
    ]
    rest = sorted(requirements, key=lambda r: r != PLAIN) if full else [PLAIN]
    others = [Chunk(requirement=r, faults=tuple(f.name for f in faults if f.requirement != r)) for r in rest]
    return [part for chunk in (*declared, *others) if checks_of(chunk.requirement) for part in chunk.parts()]


def in_this_process(chunks: Iterable[Chunk]) -> Iterator[Cell]:
    """Judge chunk by chunk."""
    for chunk in chunks:
        for name in chunk.faults:
            yield judged(named(name), chunk.requirement, chunk.profile)


def work(pipe: Connection) -> None:
    """A worker's life: chunks come in, cells go out one by one, and None where a chunk is done."""
    import torch  # noqa: PLC0415 - in the new process

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    torch.set_num_threads(1)  # two processes of two threads each ran 500 times slower
    while (chunk := pipe.recv()) is not None:
        for cell in in_this_process([chunk]):
            pipe.send(cell)
        pipe.send(None)


class Worker:
    """A process and the chunk it has at hand."""

    def __init__(self) -> None:
        # Never forked: torch may have used threads, and then a fork hangs.
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(target=work, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.at_hand: deque[str] = deque()
        self.chunk: Chunk | None = None

    def give(self, chunk: Chunk | None) -> None:
        """Deal a chunk; None ends the worker."""
        self.chunk = chunk
        self.at_hand = deque(chunk.faults if chunk else ())
        self.pipe.send(chunk)

    def stop(self) -> None:
        """End it, whatever it does."""
        self.process.terminate()
        self.process.join()
        self.pipe.close()


def spread(chunks: Iterable[Chunk], jobs: int) -> Iterator[Cell]:
    """Judge chunks in so many processes; cells come as they are done.

    A process that ends on a cell gives an error there, and what is left of its chunk goes to a new one.
    """
    todo = deque(chunks)
    workers: dict[Connection, Worker] = {}
    try:
        while todo or workers:
            while todo and len(workers) < jobs:
                worker = Worker()
                workers[worker.pipe] = worker
                worker.give(todo.popleft())
            for ready in multiprocessing.connection.wait(list(workers)):
                assert isinstance(ready, Connection)
                worker = workers[ready]
                try:
                    cell = worker.pipe.recv()
                except (EOFError, ConnectionError):
                    del workers[ready]
                    yield from _died(worker, todo)
                    continue
                if cell is not None:
                    worker.at_hand.popleft()
                    yield cell
                elif todo:
                    worker.give(todo.popleft())
                else:
                    worker.stop()
                    del workers[ready]
    finally:
        for worker in workers.values():
            worker.stop()


def _died(worker: Worker, todo: deque[Chunk]) -> Iterator[Cell]:
    worker.process.join(5)  # the pipe is closed a moment before the exit code is known
    worker.stop()
    assert worker.chunk is not None
    if not worker.at_hand:
        return
    name, *left = worker.at_hand
    if left:
        todo.appendleft(replace(worker.chunk, faults=tuple(left)))
    yield Cell(
        fault=name,
        requirement=worker.chunk.requirement,
        fate=Fate.ERROR,
        reason=f"the process that judged it ended with exit code {worker.process.exitcode}",
    )
