"""Soak: what the suites draw on top of their covering lists, again and again by other seeds.

Right implementations must hold on all of it. Covering lists are left out: they are the same in every run.
"""

from __future__ import annotations

import functools
import multiprocessing
import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from conformance import builtin_variants as _builtin_variants  # noqa: F401 - registers them
from conformance import deviations, suites
from conformance.checks import PROFILE_DRAWS, Check, Selection
from conformance.headroom import closest
from conformance.records import Record, Status
from conformance.report.words import number
from conformance.session import find, versions
from conformance.spec import requirements
from conformance.subject import Subject


@dataclass(frozen=True, kw_only=True)
class Round:
    """One check on the cases that one seed draws.

    Args:
        at: index of the check in drawn_checks().
        seed: of the draws.
        profile: how many are drawn.
        names: of the implementations, asked one after the other so that oracles are computed once.
    """

    at: int
    seed: int
    profile: str
    names: tuple[str, ...]

    @property
    def own_seed(self) -> int:
        """A seed of its own: by the same one, checks of one strategy would all draw the same cases."""
        return self.seed * len(drawn_checks()) + self.at


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a round gave.

    Args:
        round: which.
        records: one for every case and implementation that was judged.
    """

    round: Round
    records: list[Record]

    @property
    def cases(self) -> frozenset[str]:
        """The different cases among them."""
        return frozenset(record.case for record in self.records)


@functools.cache
def drawn_checks() -> list[Check]:
    """The checks of the suites that draw cases, in the order of the suites."""
    checks: list[Check] = [proof.check for proof in suites.proofs() if hasattr(proof, "check")]
    return [check for check in checks if check.draws is not None]


@functools.cache
def subject_of(name: str) -> Subject:
    """An implementation, made once a process."""
    return Subject(find(name))


def perform(one: Round) -> Outcome:
    """Draw and judge, on one torch thread; a failure that the deviations explain is none."""
    torch.set_num_threads(1)
    check, records = drawn_checks()[one.at], list[Record]()
    # All are made first: what Hypothesis draws depends on the constants in the modules that are loaded.
    for subject in [subject_of(name) for name in one.names]:
        outcomes = check.explore(subject, Selection(profile=one.profile, seed=one.own_seed))
        subject.forget()  # every case brings its own weights
        records += [r for r in outcomes if r.status is not Status.UNSUPPORTED]
    judged = deviations.apply(records, deviations.read_deviations(), versions())
    return Outcome(round=one, records=[r if r.status.is_bad else replace(r, facts={}) for r in judged])


def rounds(names: Sequence[str], seeds: Iterable[int], profile: str, ids: Sequence[str] = ()) -> list[Round]:
    """Every check that draws, by every seed; all checks of one seed before those of the next.

    Args:
        names: of implementations.
        seeds: of the draws.
        profile: "standard" or "thorough".
        ids: requirements; all where empty.

    Raises:
        ValueError: the profile draws nothing, or no check of these requirements does.
    """
    if not PROFILE_DRAWS.get(profile):
        drawing = ", ".join(name for name, draws in PROFILE_DRAWS.items() if draws)
        raise ValueError(f"profile {profile!r} draws nothing; expected one of {drawing}")
    chosen = [at for at, check in enumerate(drawn_checks()) if not ids or check.requirement in ids]
    if not chosen:
        raise ValueError(
            f"no check of {', '.join(ids)} draws cases; leave --requirement out for those that do"
        )
    return [Round(at=at, seed=s, profile=profile, names=tuple(names)) for s in seeds for at in chosen]


def performed(todo: Sequence[Round], jobs: int) -> Iterator[Outcome]:
    """Perform rounds in so many processes, or in this one; the outcomes come in their order.

    Raises:
        ValueError: fewer than one process.
    """
    if jobs < 1:
        raise ValueError(f"--jobs is {jobs}, expected at least one process")
    if jobs == 1:
        yield from map(perform, todo)
        return
    # Never forked: torch may have used threads, and then a fork hangs. Ctrl-C is the parent's to answer.
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        yield from pool.imap(perform, todo)


@dataclass
class Soak:
    """What came out so far.

    Args:
        examples: how often a case was judged.
        failures: records that are bad, by requirement, implementation and case.
        explained: how many failures the deviations explain.
        stuck: rounds that drew nothing that was not drawn before.
        headrooms: of every case that holds and was measured, by requirement and dtype.
        closest: the record of a case that holds which came closest to the line.
    """

    examples: int = 0
    failures: dict[tuple[str, str, str], Record] = field(default_factory=dict)
    explained: int = 0
    stuck: list[Round] = field(default_factory=list)
    headrooms: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    closest: Record | None = None
    seen: dict[int, set[str]] = field(default_factory=dict)

    @property
    def distinct(self) -> int:
        """How many different cases were judged, counted for each check."""
        return sum(map(len, self.seen.values()))

    @property
    def good(self) -> bool:
        """Whether something was judged, all of it holds, and every seed brought something new."""
        return self.examples > 0 and not self.failures and not self.stuck

    @property
    def summary(self) -> str:
        """How much was judged, and how much of it does not hold."""
        return (
            f"{self.examples} examples, {self.distinct} of them different; {len(self.failures)} failures, "
            f"{self.explained} listed deviations"
        )

    def add(self, outcome: Outcome) -> None:
        """Count a round."""
        seen = self.seen.setdefault(outcome.round.at, set())
        failed = any(record.status.is_bad for record in outcome.records)  # shrunk to the same by every seed
        if outcome.cases and outcome.cases <= seen and not failed:
            self.stuck.append(outcome.round)
        seen |= outcome.cases
        self.examples += len(outcome.records)
        for record in outcome.records:
            self.explained += record.status is Status.DEVIATION
            if record.status.is_bad:
                self.failures[record.requirement, record.implementation, record.case] = record
            elif record.status is Status.PASS and record.headroom is not None:
                self.headrooms.setdefault((record.requirement, record.dtype), []).append(record.headroom)
                self.closest = max(filter(None, (self.closest, record)), key=lambda r: r.headroom or 0.0)

    def table(self) -> Iterator[str]:
        """Markdown: examples, p50, p99 and max of each requirement and dtype, in budgets: 1 is the line."""
        yield "| requirement | dtype | examples | p50 | p99 | max |"
        yield "|---|---|---|---|---|---|"
        order = {id_: at for at, id_ in enumerate(requirements())}
        for requirement, dtype in sorted(self.headrooms, key=lambda key: (order[key[0]], key[1])):
            values = self.headrooms[requirement, dtype]
            figures = (*np.percentile(values, [50, 99]), max(values))
            cells = (requirement, dtype, str(len(values)), *(number(float(f), line=True) for f in figures))
            yield f"| {' | '.join(cells)} |"

    def lines(self) -> Iterator[str]:
        """The table, what came closest, every failure with its case and its command, and the count."""
        yield from self.table()
        if self.closest is not None:
            yield from ("", closest([self.closest]))
        for r in self.failures.values():
            what = r.reason or f"{r.measure}, headroom {number(r.headroom, line=True)}"
            yield from (
                "",
                f"{r.status}: {r.requirement} on {r.implementation}, {r.variant}, {r.dtype}: {what}",
            )
            yield from (f"  case   {r.case}", f"  again  {r.repro}")
        for one in self.stuck:
            yield from ("", f"seed {one.seed} draws nothing new for {drawn_checks()[one.at].title}")
        yield from ("", self.summary)
