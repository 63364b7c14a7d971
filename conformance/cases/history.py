"""A history as a case: what is done with KV caches of two models, event by event."""

from __future__ import annotations

from dataclasses import dataclass, replace

from conformance.cases.base import Case, Changes, changed
from conformance.cases.model import ModelCase
from conformance.cases.plan import JUDGED, Event, Piece, Plan, stream
from conformance.cases.script import script
from conformance.variants import first_with, variants
from conformance.weights import Regime
from reference_impl import LlamaConfig


@dataclass(frozen=True, kw_only=True)
class HistoryCase(Case):
    """What is done with KV caches of a small model of a variant, and of a second one between.

    A step that does not fit the capacity must be refused, or be right; what an implementation does not offer
    is left out. Otherwise every logit is to be that of one pass.

    Args:
        variant, shape: which config.
        regime: of the weights.
        but: fields in which the config differs from the variant's, as of ModelCase.
        events: see EVENTS. Cache 2 is one of the second model: other weights, another θ.
    """

    variant: str = "llama-3-8b"
    shape: str = "gqa"
    regime: Regime = "loud"
    but: Changes = ()
    events: tuple[Event, ...] = (("new", 0, 2, 8, 0), ("step", 0, 5), ("step", 0, 1))

    def __post_init__(self) -> None:
        if not isinstance(self.events, tuple):
            raise ValueError(f"events is {self.events!r}, a tuple of events is needed")  # noqa: TRY004 - as all bad input
        plan = Plan()
        for at, event in enumerate(self.events):
            try:
                plan.take(event)
            except ValueError as error:
                raise ValueError(f"event {at}, {event!r}: {error}") from error
        if not any(event[0] in JUDGED for event in self.events):
            raise ValueError(f"no logits are asked for: none of the events is {', '.join(sorted(JUDGED))}")

    @property
    def config(self) -> LlamaConfig:
        """The small config of the first model."""
        return changed(variants([self.variant])[0].shape(self.shape), self.but)

    @property
    def twin(self) -> HistoryCase:
        """See Case.twin."""
        variant, shape = first_with(variants([self.variant])[0].shape(self.shape))
        return replace(self, variant=variant, shape=shape)

    @property
    def models(self) -> tuple[ModelCase, ModelCase]:
        """The two models: of one architecture, on other weights, with another θ."""
        first = ModelCase(
            dtype=self.dtype,
            seed=self.seed,
            variant=self.variant,
            shape=self.shape,
            regime=self.regime,
            but=self.but,
        )
        other = ("rope.rope_theta", 3 * self.config.rope.rope_theta)
        return first, replace(first, seed=self.seed + 1, but=(*self.but, other))

    def tokens(self, piece: Piece) -> tuple[int, ...]:
        """The tokens of a piece."""
        number, start, stop = piece
        return stream(self.config.vocab_size, self.seed, number)[start:stop]

    def script(self, implementation: str) -> str:
        """The history as a Python script by the public API, which shows how far the logits are off.

        Args:
            implementation: a name as --impl takes it.
        """
        return script(self, implementation)
