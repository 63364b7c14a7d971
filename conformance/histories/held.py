"""A cache of the implementation, and what it ought to hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Row = tuple[int, ...]


@dataclass(kw_only=True)
class Held:
    """A cache of the implementation, and what it ought to hold.

    Args:
        model: whose; 0 or 1.
        own: the implementation's.
        capacity: as it was made.
        rows: tokens of each row.
        used: slots that are taken; rows of different length take as many.
        uneven: whether rows were of different length when they came.
        refused: whether a step that did not fit was.
    """

    model: int
    own: Any
    capacity: int
    rows: list[Row]
    used: int = 0
    uneven: bool = False
    refused: bool = False

    def has_room(self, n: int) -> bool:
        """Whether so many more tokens must be taken."""
        return n > 0 and self.used + n <= self.capacity

    def feed(self, tokens: list[Row], slots: int) -> None:
        """More tokens of each row, which take so many slots."""
        self.rows = [row + more for row, more in zip(self.rows, tokens, strict=True)]
        self.used += slots

    def cut(self, length: int) -> None:
        """The first tokens of each row alone."""
        self.rows, self.used = [row[:length] for row in self.rows], length
