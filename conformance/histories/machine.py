"""Draws histories: a state machine whose rules ask for events, which are judged at once.

So a history ends with the first event that is not as it should be, and Hypothesis shrinks it to a short one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from conformance.cases import HistoryCase
from conformance.cases.plan import Event, Plan
from conformance.histories import choices
from conformance.histories.choices import Choice, Choices
from conformance.histories.player import Player
from conformance.numerics.verdict import Verdict

if TYPE_CHECKING:
    from conformance.subject import Subject

# Is told of each history: the case, and what gives its verdict or raises what an event raised.
Tell = Callable[[HistoryCase, Callable[[], Verdict]], None]


def one(kind: Choices) -> st.SearchStrategy[Choice]:
    """One of the choices that the machine at hand has."""
    return st.runner().flatmap(lambda machine: st.sampled_from(machine.of(kind)))


def there_is(kind: Choices) -> Callable[[Machine], bool]:
    """Whether the machine at hand has any."""
    return lambda machine: bool(machine.of(kind))


def beginnings() -> st.SearchStrategy[tuple[HistoryCase, Choice]]:
    """A case whose models are asked, and a first cache."""
    headers = st.runner().flatmap(lambda machine: st.sampled_from(machine.headers))
    return headers.flatmap(
        lambda header: st.tuples(st.just(header), st.sampled_from(choices.new(Plan(), slides(header))))
    )


def slides(header: HistoryCase) -> bool:
    """Whether its models have a sliding window."""
    return header.config.sliding_window is not None


class Machine(RuleBasedStateMachine):
    """What may be done with three caches of two models, in any order.

    Args:
        subject: who.
        headers: cases whose models are asked; their events are not.
        tell: is told of the history when it ends, or as soon as an event is not as it should be.
    """

    header: HistoryCase
    player: Player

    def __init__(self, subject: Subject, headers: list[HistoryCase], tell: Tell) -> None:
        super().__init__()
        self.subject, self.headers, self.tell = subject, headers, tell
        self.events: list[Event] = []
        self.told = False
        self._choices: dict[Choices, list[Choice]] = {}

    def of(self, kind: Choices) -> list[Choice]:
        """The choices that there are now."""
        if kind not in self._choices:
            self._choices[kind] = kind(self.player.plan, slides(self.header))
        return self._choices[kind]

    def ask(self, chosen: Choice) -> None:
        """Play events."""
        self._choices = {}
        for event in chosen:
            self.events.append(event)
            raised = None
            try:
                self.player.play(event)
            except Exception as error:  # noqa: BLE001 - whatever a subject raises is a result
                raised = error
            # Outside of the handler: by what goes before, Hypothesis would tell failures apart.
            if raised is not None or self.player.failed:
                self.end(raised)

    def end(self, error: Exception | None = None) -> None:
        """Tell of what was played."""

        def result() -> Verdict:
            if error is not None:
                raise error
            return self.player.verdict()

        self.told = True
        self.tell(replace(self.header, events=tuple(self.events)), result)

    def teardown(self) -> None:
        """Tell of a history all of which holds."""
        if not self.told and self.events and self.player.judged:
            self.end()

    @initialize(begun=beginnings())
    def begins(self, begun: tuple[HistoryCase, Choice]) -> None:
        """With the models that are asked, and a cache."""
        self.header, chosen = begun
        self.player = Player(self.subject, self.header)
        self.ask(chosen)

    @precondition(there_is(choices.step))
    @rule(chosen=one(choices.step))
    def adds(self, chosen: Choice) -> None:
        """A chunk."""
        self.ask(chosen)

    @precondition(there_is(choices.crop))
    @rule(chosen=one(choices.crop))
    def crops(self, chosen: Choice) -> None:
        """Back to some length."""
        self.ask(chosen)

    @precondition(there_is(choices.decode))
    @rule(chosen=one(choices.decode))
    def decodes(self, chosen: Choice) -> None:
        """Single tokens."""
        self.ask(chosen)

    @rule(chosen=one(choices.new))
    def makes(self, chosen: Choice) -> None:
        """Another cache, or one in the place of another."""
        self.ask(chosen)

    @precondition(there_is(choices.overflow))
    @rule(chosen=one(choices.overflow))
    def overflows(self, chosen: Choice) -> None:
        """More than fits."""
        self.ask(chosen)

    @rule(chosen=one(choices.full_pass))
    def passes(self, chosen: Choice) -> None:
        """Without a cache."""
        self.ask(chosen)

    @precondition(there_is(choices.prefill))
    @rule(chosen=one(choices.prefill))
    def prefills(self, chosen: Choice) -> None:
        """Rows of different length."""
        self.ask(chosen)

    @precondition(there_is(choices.reorder))
    @rule(chosen=one(choices.reorder))
    def reorders(self, chosen: Choice) -> None:
        """Rows as beams."""
        self.ask(chosen)

    @precondition(there_is(choices.reset))
    @rule(chosen=one(choices.reset))
    def resets(self, chosen: Choice) -> None:
        """To be used again."""
        self.ask(chosen)
