"""Where an implementation first goes wrong: what every step adds to the error, and what it inherits.

A step's added error is that of its tap against the oracle's step on the implementation's own input, judged
against the budget of that step. What it inherits is what the oracle's step makes of the error in that input.
The first step in causal order that adds more than its budget is where to look; later ones may be over theirs
for the same reason, and their total error says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from conformance.cases import ModelCase
from conformance.implementations.base import Model, Unsupported
from conformance.numerics.arrows import STREAM, TOKENS, Way, arrows
from conformance.numerics.measures import MEASURES, measure
from conformance.numerics.taps import Follower, Seen, ways
from conformance.subject import Subject
from reference_impl import LlamaConfig

# Name of an arrow → the part of a Llama that computes it.
COMPONENTS = {
    "embedding": "embedding",
    "attn_norm": "norm",
    "mlp_norm": "norm",
    "final_norm": "norm",
    "q_rot": "rope",
    "k_rot": "rope",
    **dict.fromkeys(("q", "k", "v", "attention", "attn_out"), "attention"),
    **dict.fromkeys(("gate", "up", "gated", "mlp_out"), "mlp"),
    **dict.fromkeys(("attn_residual", "mlp_residual"), "block"),
    "logits": "logits",
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One step of a trace.

    Args:
        tap: what it led to.
        measure: which error is the worst against its budget.
        added: that error, on the implementation's own input; None where nothing could be measured.
        allowed: its budget.
        headroom: added / allowed.
        inherited: the same error of the oracle's step on that input, against the oracle's own.
        coordinate: index of the worst row or element.
        reason: in words, where there is no number.
        through: steps judged together with this one, for their taps are not shown.
    """

    tap: str
    measure: str
    added: float | None
    allowed: float | None
    headroom: float | None
    inherited: float | None
    coordinate: tuple[int, ...]
    reason: str = ""
    through: tuple[str, ...] = ()

    @property
    def over(self) -> bool:
        """Whether it adds more than rounding explains."""
        return bool(self.reason) or (self.headroom or 0.0) > 1

    @property
    def component(self) -> str:
        """The part of a Llama that this step is; several where they were judged together."""
        parts = [COMPONENTS[tap.rpartition(".")[2]] for tap in (*self.through, self.tap)]
        return " or ".join(dict.fromkeys(parts))


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What a pass showed, in causal order.

    Args:
        rows: one a tap.
    """

    rows: list[Row] = field(default_factory=list)

    @property
    def first(self) -> Row | None:
        """The first step that is over its budget."""
        return next((row for row in self.rows if row.over), None)

    @property
    def suspect(self) -> str:
        """Its tap; "" where every step is within its budget."""
        return self.first.tap if self.first else ""

    @property
    def component(self) -> str:
        """Its part of a Llama; "" where every step is within its budget."""
        return self.first.component if self.first else ""


class Right:
    """The oracle's own taps, computed as they are asked for and dropped when their layer is over.

    Args:
        config: whose.
        tokens_BT: of the pass.
        oracle: how.
    """

    def __init__(self, config: LlamaConfig, tokens_BT: Tensor, oracle: Way) -> None:
        self._rest = iter(arrows(config))
        self._oracle = oracle
        self._taps: dict[str, Tensor] = {TOKENS: tokens_BT}

    def __call__(self, tap: str) -> Tensor:
        """The oracle's tap.

        Raises:
            ValueError: its layer is over: taps are to be shown in causal order.
        """
        while tap not in self._taps:
            arrow = next(self._rest, None)
            if arrow is None:
                raise ValueError(f"{tap} was shown after what follows from it, expected causal order")
            made = arrow.answer(self._taps, self._oracle)
            if arrow.tap.endswith(STREAM) and tap != arrow.tap:
                self._taps = {}  # the layers after start from here alone
            self._taps[arrow.tap] = made
        return self._taps[tap]


def row_of(seen: Seen, right: Tensor, dtype: torch.dtype) -> Row:
    """A judged tap as a row."""
    verdict, inherited = seen.verdict, None
    if seen.want is not None and seen.want.shape == right.shape and verdict.measure in MEASURES:
        inherited = measure(seen.want, right, dtype).values[verdict.measure]
    return Row(
        tap=seen.arrow.tap,
        measure=verdict.measure,
        added=verdict.error,
        allowed=verdict.budget,
        headroom=verdict.headroom,
        inherited=inherited,
        coordinate=verdict.coordinate,
        reason="" if verdict.passed else verdict.reason,
        through=seen.through,
    )


def follow(
    watch: Callable[[Tensor, Callable[[str, Tensor], None]], None],
    config: LlamaConfig,
    tokens_BT: Tensor,
    dtype: torch.dtype,
    oracle: Way,
    accepted: list[Way],
) -> Trace:
    """Trace one pass as it runs, with no more than a few layers in memory.

    Args:
        watch: runs the pass, such as Model.watch.
        config: of the model.
        tokens_BT: of the pass.
        dtype: the model's.
        oracle, accepted: how a step is computed rightly, and in which ways it may be rounded.
    """
    right = Right(config, tokens_BT, oracle)
    follower = Follower(config, tokens_BT, dtype, right, oracle, accepted)
    rows: list[Row] = []

    def show(name: str, value: Tensor) -> None:
        seen = follower.see(name, value)
        if seen is not None:
            rows.append(row_of(seen, right(name), dtype))

    watch(tokens_BT, show)
    return Trace(rows=rows)


def trace(subject: Subject, case: ModelCase) -> Trace:
    """Trace the plain forward pass of a case's model on its tokens.

    Raises:
        Unsupported: the implementation shows no taps, or none that can be judged.
    """
    plain = replace(case, chunks=(), places="run")
    return traced(subject.model(plain), plain, subject)


def traced(model: Model, case: ModelCase, subject: Subject) -> Trace:
    """The same of a model that is built already."""
    tokens = case.token_ids()
    with torch.no_grad():
        found = follow(
            lambda ids, show: model.watch(subject.on_device(ids), show),
            case.config,
            tokens,
            case.torch_dtype,
            *ways(case),
        )
    if not found.rows:
        raise Unsupported("does not offer taps: none that is shown can be judged")
    return found


def shortened(rows: Iterable[Row], most: int = 6) -> list[Row]:
    """The rows that tell the story: those before the first that is over, it, and the next."""
    rows = list(rows)
    at = next((i for i, row in enumerate(rows) if row.over), len(rows) - 1)
    return rows[max(0, at - most + 3) : at + 3]
