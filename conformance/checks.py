"""A check: one requirement, asked of an implementation on a covering list of cases and on drawn ones.

The covering list is fixed and chosen for power; it is always judged to its end, so that one failure hides no
other variant or dtype. Draws come on top and are shrunk by Hypothesis. A check's body must return a verdict:
a check that asserts nothing cannot be written.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance.cases import Case
from conformance.exploring import Drawn, explored
from conformance.histories.draws import Histories
from conformance.inputs import DTYPES
from conformance.numerics.verdict import Verdict
from conformance.records import Record, Status
from conformance.spec import requirement as spec_of
from conformance.subject import Subject
from conformance.suspects import locate
from conformance.tally import Question, Tally
from conformance.variants import Variant, variants

PROFILE_DRAWS = {"quick": 0, "standard": 20, "thorough": 300}
PROFILE_HISTORIES = {"quick": 0, "standard": 350, "thorough": 2300}  # a few come twice


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What a run covers.

    Args:
        variants: architectures.
        dtypes: names.
        profile: "quick" (covering lists alone), "standard", "thorough".
        seed: of the draws.
        device: where implementations compute.
        case: judge this one alone.
    """

    variants: tuple[Variant, ...] = field(default_factory=lambda: tuple(variants()))
    dtypes: tuple[str, ...] = tuple(DTYPES)
    profile: str = "standard"
    seed: int = 0
    device: str = "cpu"
    case: Case | None = None

    def smalls(self) -> list[tuple[str, str]]:
        """(variant, shape) of every small config, the powerful shape of each variant first."""
        pairs = [(v.name, shape) for v in self.variants for shape in v.small]
        return sorted(pairs, key=lambda pair: pair[1] != "gqa")

    def models(self) -> list[tuple[str, str, str]]:
        """(dtype, variant, shape): every small config in float32, few in 16-bit.

        For what depends on the variant, and on the dtype, but hardly on both together.
        """
        return [
            (dtype, variant, shape)
            for dtype in self.dtypes
            for variant, shape in (self.smalls() if dtype == "float32" else self.few())
        ]

    def few(self) -> list[tuple[str, str]]:
        """The first untied and the first tied of them, for what depends on neither frequencies nor windows.

        H·d ≠ D in the first; in the other H·d = D if it can be, for who knows no other widths.
        """
        shapes = {(v.name, shape): config for v in self.variants for shape, config in v.small.items()}

        def rank(pair: tuple[str, str]) -> tuple[bool, bool, bool]:
            config = shapes[pair]
            fills = config.num_attention_heads * config.head_dim == config.hidden_size
            return config.sliding_window is not None, fills != config.tie_word_embeddings, pair[1] != "gqa"

        kinds = ([p for p, c in shapes.items() if c.tie_word_embeddings is tied] for tied in (False, True))
        return [min(pairs, key=rank) for pairs in kinds if pairs]


Body = Callable[[Subject, Case], "Verdict | list[Verdict]"]
Cases = Callable[[Selection], Iterable[Case]]
Draws = Callable[[Selection], Drawn]


@dataclass(frozen=True, kw_only=True)
class Check(Question):
    """One requirement as a question with cases.

    Args:
        cases: the covering list of a selection.
        draws: a strategy for more, or histories, or None.
    """

    cases: Cases
    draws: Draws | None = None

    def run(self, subject: Subject, selection: Selection, *, until_failure: bool = False) -> list[Record]:
        """Judge an implementation; one record per variant and dtype.

        Args:
            subject: who.
            selection: on what.
            until_failure: stop at the first case that fails, as it is found; for proofs of power.
        """
        tally = Tally(self, subject)
        wanted = [c for c in self.covering(selection) if c.dtype in selection.dtypes]
        for case in wanted:
            outcome = tally.judge(case)
            if until_failure and outcome.status in {Status.FAIL, Status.ERROR}:
                return tally.records
        if selection.case is None and wanted:
            for outcome in self.explore(subject, selection, shrink=not until_failure):
                tally.add(outcome)
        if not until_failure:
            locate(tally)
        if not tally.records:
            tally.skip("none of the selected variants, dtypes and cases concerns this requirement")
        return tally.records

    def covering(self, selection: Selection) -> list[Case]:
        """The cases of the covering list, or the one case asked for if it is of their kind."""
        cases = list(self.cases(selection))
        if selection.case is None:
            return cases
        return [selection.case] if any(alike(c, selection.case) for c in cases) else []

    def explore(self, subject: Subject, selection: Selection, *, shrink: bool = True) -> list[Record]:
        """The outcomes of drawn cases: of every one that holds, and of the smallest that does not, if any.

        Args:
            subject: who.
            selection: how many are drawn, and by which seed.
            shrink: look for a smaller case that does not hold.
        """
        if PROFILE_DRAWS[selection.profile] == 0 or self.draws is None:
            return []
        drawn = self.draws(selection)
        most = PROFILE_DRAWS[selection.profile]
        if isinstance(drawn, Histories):
            most = round(PROFILE_HISTORIES[selection.profile] * drawn.share)
        return explored(
            self,
            drawn,
            subject,
            most=most,
            seed_of_draws=selection.seed,
            shrink=shrink,
        )


def alike(one: Case, other: Case) -> bool:
    """Whether two cases are of a kind: a check of chunks or of a changed config has nothing to ask else."""
    kinds = [(type(c), *(bool(getattr(c, name, ())) for name in ("chunks", "but"))) for c in (one, other)]
    return kinds[0] == kinds[1]


def proves(requirement: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Say which requirement a test proves; it then runs for each implementation, as fixture `subject`.

    Raises:
        ValueError: the requirement is not in the spec.
    """
    spec_of(requirement)

    def mark(test: Callable[..., None]) -> Callable[..., None]:
        test.requirement = requirement  # type: ignore[attr-defined]
        return test

    return mark


def check(
    requirement: str, *, cases: Cases, draws: Draws | None = None
) -> Callable[[Body], Callable[..., None]]:
    """Make a pytest test of a body (subject, case) → verdict, run once for each implementation.

    Args:
        requirement: id of what the body proves; it must stand in the spec.
        cases: selection → the covering list, the powerful ones first.
        draws: selection → a strategy for further cases.

    Raises:
        ValueError: the requirement is not in the spec.
    """

    def decorate(body: Body) -> Callable[..., None]:
        item = Check(
            requirement=requirement,
            title=body.__name__,
            path=Path(inspect.getfile(body)),
            body=body,
            cases=cases,
            draws=draws,
        )

        # The fixtures come from conformance.plugin.
        def test(subject: Subject, selection: Selection, keep_records: Any) -> None:
            keep_records(item.run(subject, selection))

        test.__name__ = test.__qualname__ = body.__name__
        test.__module__ = body.__module__
        test.__doc__ = body.__doc__
        test.check = item  # type: ignore[attr-defined]
        return proves(requirement)(test)

    return decorate
