"""Events of a history of KV caches: how they are written, what each brings, and where it can be asked.

The tokens of an event follow from the history alone, not from what an implementation makes of it: so a
history can be drawn, replayed, and written out as a script.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

Event = tuple[Any, ...]
# Tokens of a row: (stream, from, to), see stream().
Piece = tuple[int, int, int]

CACHES = 3  # 0 and 1 are caches of one model, 2 of another
MODELS = 2
STREAM = 1024  # the most tokens of a row
PASS, FILLER = -1, -2  # the streams of full passes, and of what stands behind short prompts
# What follows the name of an event. n: tokens; kind: modulo the kinds of cache that there are.
EVENTS = {
    "new": ("cache", "batch", "capacity", "kind"),
    "poison": ("cache",),
    "step": ("cache", "n"),
    "prefill": ("cache", "(n, …)"),
    "crop": ("cache", "length"),
    "reorder": ("cache", "(row, …)"),
    "reset": ("cache",),
    "pass": ("model", "n"),
}
# What unwritten slots hold: as large as can be without an overflow of a product with a query.
POISON = {"float32": 1e4, "bfloat16": 1e4, "float16": 1e3}
JUDGED = frozenset({"step", "prefill", "pass"})


def spelled(kind: str) -> str:
    """How an event is written."""
    return f'("{kind}", {", ".join(EVENTS[kind])})'


@functools.lru_cache(maxsize=256)
def stream(vocabulary: int, seed: int, number: int) -> tuple[int, ...]:
    """The tokens of a stream. There are few, so that histories share the right answers."""
    generator = torch.Generator().manual_seed(1_000_003 * (seed + 1) + number)
    return tuple(torch.randint(0, vocabulary, (2 * STREAM,), generator=generator).tolist())


@dataclass(kw_only=True)
class Sketch:
    """What is known of a cache before anything is computed.

    Args:
        batch, capacity: as it was made.
        streams: of each row.
        offset: tokens that each row has taken of its stream.
        length: tokens of the longest row, if what does not fit is refused.
        most: the same if it is taken.
        untouched: whether nothing was asked of it since it was made or reset.
        uneven: whether its rows differ in length.
    """

    batch: int
    capacity: int
    streams: list[int]
    offset: list[int] = field(default_factory=list)
    length: int = 0
    most: int = 0
    untouched: bool = True
    uneven: bool = False

    def __post_init__(self) -> None:
        self.offset = self.offset or [0] * self.batch

    @property
    def left(self) -> int:
        """How many more tokens fit."""
        return self.capacity - self.length

    def take(self, tokens: list[int]) -> list[Piece]:
        """So many more tokens of each row's stream.

        Raises:
            ValueError: the stream ends before.
        """
        if max(self.offset) + max(tokens) > STREAM:
            raise ValueError(f"a row has {STREAM} tokens at most")
        starts, self.offset = self.offset, [at + n for at, n in zip(self.offset, tokens, strict=True)]
        return list(zip(self.streams, starts, self.offset, strict=True))


class Plan:
    """Goes through a history: what each event brings, and whether it can be asked at all.

    Attributes:
        caches: by id.
    """

    def __init__(self) -> None:
        self.caches: dict[int, Sketch] = {}
        self._turns = dict.fromkeys(range(CACHES), 0)

    def take(self, event: Event) -> list[Piece]:
        """The tokens that an event brings, a piece a row; none where it is no "step", "prefill" or "pass".

        Raises:
            ValueError: it is no event, or cannot be asked at this point; says why.
        """
        if not isinstance(event, tuple) or not event or event[0] not in list(EVENTS):
            raise ValueError(f"expected one of {', '.join(map(spelled, EVENTS))}")
        kind, *given = event
        if len(given) != len(EVENTS[kind]):
            raise ValueError(f"expected {spelled(kind)}")
        whole(EVENTS[kind][0], given[0], 0, (MODELS if kind == "pass" else CACHES) - 1)
        if kind not in {"new", "pass"} and given[0] not in self.caches:
            raise ValueError(f"there is no cache {given[0]} yet")
        ask: Callable[..., list[Piece]] = getattr(self, f"_{kind}")
        return ask(*given)

    def _turned(self, cache: int, batch: int) -> list[int]:
        """Other streams than before, so that what is left of earlier tokens shows."""
        turn = self._turns[cache]
        self._turns[cache] += 1
        return [(turn * CACHES + cache) * STREAM + row for row in range(batch)]

    def _turn(self, cache: int) -> Sketch:
        sketch = self.caches[cache]
        sketch.streams, sketch.offset = self._turned(cache, sketch.batch), [0] * sketch.batch
        return sketch

    def _new(self, cache: int, batch: int, capacity: int, kind: int) -> list[Piece]:
        for name, value, least in (("batch", batch, 1), ("capacity", capacity, 1), ("kind", kind, 0)):
            whole(name, value, least)
        self.caches[cache] = Sketch(batch=batch, capacity=capacity, streams=self._turned(cache, batch))
        return []

    def _poison(self, cache: int) -> list[Piece]:
        if not self.caches[cache].untouched:
            raise ValueError("only a cache that is new or reset is poisoned")
        return []

    def _step(self, cache: int, n: int) -> list[Piece]:
        whole("n", n, 0)
        sketch = self.caches[cache]
        pieces = sketch.take([n] * sketch.batch)
        sketch.length += n if sketch.length + n <= sketch.capacity else 0
        sketch.most, sketch.untouched = sketch.most + n, False
        return pieces

    def _prefill(self, cache: int, lengths: tuple[int, ...]) -> list[Piece]:
        sketch = self.caches[cache]
        several("lengths", lengths, sketch.batch, 1, sketch.capacity)
        if not sketch.untouched:
            raise ValueError("only a cache that is new or reset is prefilled")
        sketch.length = sketch.most = max(lengths)
        sketch.untouched, sketch.uneven = False, len(set(lengths)) > 1
        return sketch.take(list(lengths))

    def _crop(self, cache: int, length: int) -> list[Piece]:
        sketch = self.caches[cache]
        whole("length", length, 0, sketch.most)
        if sketch.uneven:
            raise ValueError("rows of different length have no length to go back to")
        sketch.length, sketch.most = min(sketch.length, length), length
        self._turn(cache)
        return []

    def _reorder(self, cache: int, rows: tuple[int, ...]) -> list[Piece]:
        sketch = self.caches[cache]
        several("rows", rows, sketch.batch, 0, sketch.batch - 1)
        self._turn(cache)
        return []

    def _reset(self, cache: int) -> list[Piece]:
        sketch = self._turn(cache)
        sketch.length, sketch.most, sketch.untouched, sketch.uneven = 0, 0, True, False
        return []

    def _pass(self, _model: int, n: int) -> list[Piece]:
        whole("n", n, 1, STREAM)
        return [(PASS, 0, n)]


def whole(name: str, value: object, least: int, most: int = STREAM) -> None:
    """Require a whole number.

    Raises:
        ValueError: it is none, or out of bounds.
    """
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} is {value!r}, expected a whole number of {least} … {most}")


def several(name: str, value: object, count: int, least: int, most: int) -> None:
    """Require a tuple of so many whole numbers.

    Raises:
        ValueError: it is none, or one of them is out of bounds.
    """
    if not isinstance(value, tuple) or len(value) != count:
        raise ValueError(f"{name} is {value!r}, expected a tuple of {count}, one for each row")
    for one in value:
        whole(name, one, least, most)
