"""What may be asked next in a history: every choice of events of a kind, the simplest first.

None depends on what an implementation made of the events before, so all are asked the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product

from conformance.cases.plan import CACHES, MODELS, Event, Plan, Sketch

# Events that go together.
Choice = tuple[Event, ...]
Choices = Callable[[Plan, bool], list[Choice]]

BATCHES = (1, 2, 3)
CAPACITIES = (8, 12, 9, 20, 24)
# Where there is a sliding window of 12: as much as it shows, and more than twice that; less is CACHE-11's.
WINDOWED = (12, 36, 40, 13)
CHUNKS = (1, 3, 2, 5, 8, 13, 21, 0)
LENGTHS = (1, 2, 5, 12)
MORE = (1, 3)
CLOSE = 12  # slots that are left where more is asked for


def caches(plan: Plan, fits: Callable[[Sketch], bool]) -> Iterable[tuple[int, Sketch]]:
    """Those of which something is so."""
    return [(cache, sketch) for cache, sketch in sorted(plan.caches.items()) if fits(sketch)]


def new(plan: Plan, windowed: bool) -> list[Choice]:
    """A cache, poisoned or not; of another's size more often than not."""
    alike = [(sketch.batch, sketch.capacity) for sketch in plan.caches.values()] * 8
    sizes = [*alike, *product(BATCHES, WINDOWED if windowed else CAPACITIES)]
    ids = range(CACHES) if plan.caches else (0,)
    made = [("new", cache, *size, kind) for size in sizes for kind in (0, 1) for cache in ids]
    return [(event,) for event in made] + [(event, ("poison", event[1])) for event in made]


def step(plan: Plan, _windowed: bool) -> list[Choice]:
    """A chunk that fits."""
    return [
        (("step", cache, n),)
        for cache, sketch in caches(plan, lambda _: True)
        for n in dict.fromkeys((*CHUNKS, sketch.left))
        if n <= sketch.left
    ]


def decode(plan: Plan, _windowed: bool) -> list[Choice]:
    """Single tokens, of one cache or of all in turns."""
    open_ = [cache for cache, _ in caches(plan, lambda s: s.left > 1)]
    rounds = [tuple(("step", cache, 1) for cache in some) for some in ([[c] for c in open_] + [open_])]
    return [one * times for times in (1, 2) for one in rounds if one]


def overflow(plan: Plan, _windowed: bool) -> list[Choice]:
    """More than fits."""
    found = caches(plan, lambda s: s.left <= CLOSE)
    return [(("step", cache, sketch.left + more),) for cache, sketch in found for more in MORE]


def prefill(plan: Plan, _windowed: bool) -> list[Choice]:
    """Rows of different length."""
    return [
        (("prefill", cache, lengths),)
        for cache, sketch in caches(plan, lambda s: s.untouched)
        for lengths in product([n for n in LENGTHS if n <= sketch.capacity], repeat=sketch.batch)
    ]


def crop(plan: Plan, _windowed: bool) -> list[Choice]:
    """Back to any length."""
    found = caches(plan, lambda s: s.length > 0 and not s.uneven)
    return [(("crop", cache, length),) for cache, sketch in found for length in range(sketch.length + 1)]


def reorder(plan: Plan, _windowed: bool) -> list[Choice]:
    """Rows in any order, some of them twice."""
    return [
        (("reorder", cache, rows),)
        for cache, sketch in caches(plan, lambda s: s.length > 0 and s.batch > 1)
        for rows in product(range(sketch.batch), repeat=sketch.batch)
        if rows != tuple(range(sketch.batch))
    ]


def reset(plan: Plan, _windowed: bool) -> list[Choice]:
    """To be used again, poisoned or not."""
    found = [cache for cache, _ in caches(plan, lambda s: s.length > 0)]
    return [(("reset", c),) for c in found] + [(("reset", c), ("poison", c)) for c in found]


def full_pass(_plan: Plan, _windowed: bool) -> list[Choice]:
    """Without a cache."""
    return [(("pass", model, n),) for n in LENGTHS for model in range(MODELS)]
