"""What is drawn on top of a covering list: judged, and shrunk by Hypothesis where it does not hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Flaky
from hypothesis.strategies import SearchStrategy

from conformance.case_spec import parse_case
from conformance.cases import Case
from conformance.cases.history import HistoryCase
from conformance.histories.draws import Histories
from conformance.numerics.verdict import Verdict
from conformance.records import Record, Status
from conformance.subject import Subject
from conformance.tally import Question, Tally

Drawn = SearchStrategy[Case] | Histories
BAD = frozenset({Status.FAIL, Status.ERROR})


class Found(Exception):  # noqa: N818 - a signal to the engine that shrinks
    """A drawn case that does not hold."""


def explored(
    question: Question, drawn: Drawn, subject: Subject, *, most: int, seed_of_draws: int, shrink: bool
) -> list[Record]:
    """The outcomes of drawn cases: of every one that holds, and of the smallest that does not, if any.

    Args:
        question: what is asked.
        drawn: of what.
        subject: who.
        most: how many are drawn.
        seed_of_draws: by which seed.
        shrink: look for a smaller case that does not hold.
    """
    outcomes, failures = list[Record](), list[Record]()

    def take(outcome: Record) -> None:
        if outcome.status in BAD:
            failures.append(outcome)
            raise Found
        outcomes.append(outcome)

    how = settings(
        max_examples=most,
        deadline=None,
        database=None,
        derandomize=False,
        phases=[Phase.generate, Phase.target, *([Phase.shrink] if shrink else [])],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    try:
        if isinstance(drawn, Histories):
            drawn.run(subject, teller(question, subject, take), how, seed_of_draws)
        else:
            probe(question, drawn, subject, take, how, seed_of_draws)
    except Found:  # the shrunk one: Hypothesis runs it last
        outcomes.append(failures[-1])
    except Flaky:
        outcomes.append(not_every_time(failures[-1]))
    return counted(outcomes, question, subject) if isinstance(drawn, Histories) else outcomes


def probe(
    question: Question,
    drawn: SearchStrategy[Case],
    subject: Subject,
    take: Callable[[Record], None],
    how: settings,
    seed_of_draws: int,
) -> None:
    """Judge cases of a strategy."""
    tally = Tally(question, subject)

    @seed(seed_of_draws)
    @how
    @given(case=drawn)
    def examine(case: Case) -> None:
        take(tally.examine(case))

    examine()


def teller(
    question: Question, subject: Subject, take: Callable[[Record], None]
) -> Callable[[HistoryCase, Callable[[], Verdict]], None]:
    """What makes a record of a history that was played already."""

    def tell(case: HistoryCase, result: Callable[[], Verdict]) -> None:
        known = replace(question, body=lambda _subject, _case: result())
        take(Tally(known, subject).examine(case))

    return tell


def counted(outcomes: list[Record], question: Question, subject: Subject) -> list[Record]:
    """The outcomes of histories, with the number of different ones.

    One that does not hold is judged anew: its model had been asked for others before, and the record is to
    say what the history alone does.
    """
    number = str(len({outcome.case for outcome in outcomes if outcome.status is not Status.UNSUPPORTED}))
    found = []
    for outcome in outcomes:
        again = outcome
        if outcome.status in BAD:
            fresh = Subject(subject.implementation, str(subject.device))
            again = Tally(question, fresh).examine(parse_case(outcome.case))
            again = again if again.status in BAD else not_every_time(outcome)
        found.append(replace(again, facts={**again.facts, "histories": number}))
    return found


def not_every_time(outcome: Record) -> Record:
    """A failure that the same case does not always give."""
    reason = outcome.reason.removeprefix(NOT_EVERY_TIME)
    return replace(outcome, reason=f"{NOT_EVERY_TIME}{reason}".removesuffix("; "))


NOT_EVERY_TIME = "not every time on the same case; "
