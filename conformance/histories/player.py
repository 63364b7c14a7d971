"""Plays a history on an implementation and judges every logit that comes.

Shape suffixes: B batch, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from conformance.cases import HistoryCase
from conformance.cases.plan import FILLER, PASS, POISON, Event, Piece, Plan
from conformance.histories.held import Held, Row
from conformance.histories.oracle import Right, length_of, right_of
from conformance.implementations.base import Model, Unsupported
from conformance.numerics.verdict import Verdict, compare, exact, malformed, worst_of
from conformance.subject import Subject
from conformance.tally import describe_exception


class Player:
    """Plays events one by one; what is not offered is left out, and noted.

    Args:
        subject: who.
        case: of what models; its own events are not played by themselves.

    Attributes:
        plan: what was asked for so far.
    """

    def __init__(self, subject: Subject, case: HistoryCase) -> None:
        self.plan = Plan()
        self._subject, self._case, self._cases = subject, case, case.twin.models
        self._caches: dict[int, Held] = {}
        self._worst: Verdict | None = None
        self._asked: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._reasons: dict[str, str] = {}
        self._facts: dict[str, str] = {}

    @property
    def judged(self) -> bool:
        """Whether anything was."""
        return self._worst is not None

    @property
    def failed(self) -> bool:
        """Whether an event was not as it should be; what comes after it is not worth asking."""
        return self._worst is not None and not self._worst.passed

    def play(self, event: Event) -> None:
        """Ask for an event and judge what comes of it.

        Raises:
            ValueError: it cannot be asked at this point.
            Exception: what the implementation raises where nothing stands against what was asked.
        """
        at, (kind, which, *given) = self._asked.total(), event
        pieces = self.plan.take(event)
        self._asked[kind] += 1
        try:
            verdict: Verdict | None = getattr(self, f"_{kind}")(which, pieces, *given)
        except Unsupported as unsupported:
            self._refused[kind] += 1
            self._reasons[kind] = str(unsupported)
            return
        if verdict is not None:
            if not verdict.passed:
                where = f"event {at}, {event!r}"
                verdict = replace(verdict, reason=f"{where}: {verdict.reason}" if verdict.reason else where)
            self._worst = verdict if self._worst is None else worst_of(self._worst, verdict)

    def verdict(self, about: str = "new") -> Verdict:
        """Of everything that was played.

        Args:
            about: the event that the history is there for.

        Raises:
            Unsupported: that event, or a cache with its steps, was not offered whenever it was asked for.
        """
        for kind in () if self.failed else ("new", "step", about):
            if self._asked[kind] and self._asked[kind] == self._refused[kind]:
                raise Unsupported(self._reasons[kind])
        assert self._worst is not None, "a history in which nothing was judged"
        left_out = "; ".join(f"{kind}: {reason}" for kind, reason in self._reasons.items())
        facts = {**self._facts, **({"left out": left_out} if left_out else {})}
        return replace(self._worst, facts={**self._worst.facts, **facts})

    def _model(self, which: int) -> Model:
        return self._subject.model(self._cases[which])

    def _held(self, cache: int) -> tuple[Model, Held]:
        if cache not in self._caches:
            raise Unsupported(self._reasons["new"])
        held = self._caches[cache]
        return self._model(held.model), held

    def _tokens(self, pieces: list[Piece]) -> list[Row]:
        return [self._case.tokens(piece) for piece in pieces]

    def _there(self, numbers: Sequence[Row] | Row) -> Tensor:
        return self._subject.on_device(torch.tensor(numbers, dtype=torch.int64))

    def _new(self, cache: int, _pieces: list[Piece], batch: int, capacity: int, kind: int) -> None:
        self._caches.pop(cache, None)
        of = int(cache > 1)
        model = self._model(of)
        kinds = model.cache_kinds()
        own = model.new_cache(batch, capacity, kinds[kind % len(kinds)])
        self._caches[cache] = Held(model=of, own=own, capacity=capacity, rows=[()] * batch)

    def _poison(self, cache: int, _pieces: list[Piece]) -> None:
        model, held = self._held(cache)
        if held.used:  # it could not be reset
            return
        for at, tensor in enumerate(model.cache_tensors(held.own)):
            signs = torch.randint(0, 2, tensor.shape, generator=torch.Generator().manual_seed(at)) * 2 - 1
            tensor.copy_(POISON[self._case.dtype] * signs)

    def _step(self, cache: int, pieces: list[Piece], n: int) -> Verdict:
        (model, held), tokens = self._held(cache), self._tokens(pieces)
        try:
            logits = model.step(self._there(tokens), held.own)
        except Unsupported:
            raise
        except Exception as error:
            if held.has_room(n) and held.used + n < held.capacity and not held.refused:
                raise  # whatever is wrong, it is not the room
            return self._refusal(error, held, n)
        held.feed(tokens, n)
        right = self._right(held.model, held.rows, self._ahead(cache))
        want = torch.stack([right.logits[b, len(row) - n : len(row)] for b, row in enumerate(held.rows)])
        return self._judged(logits, want, right)

    def _prefill(self, cache: int, pieces: list[Piece], lengths: tuple[int, ...]) -> Verdict | None:
        model, held = self._held(cache)
        if held.used:  # it could not be reset
            return None
        longest, tokens = max(lengths), self._tokens(pieces)
        filler = self._case.tokens((FILLER, 0, longest))
        padded = [row + filler[len(row) :] for row in tokens]
        logits = model.prefill(self._there(padded), held.own, self._there(lengths))
        held.feed(tokens, longest)
        held.uneven = len(set(lengths)) > 1
        right = self._right(held.model, held.rows, self._ahead(cache))
        want = right.logits[:, :longest]
        if logits.shape != want.shape:
            return malformed(logits, want, self._case.torch_dtype)
        real_BT = torch.arange(longest) < torch.tensor(lengths)[:, None]
        verdict = self._judged(logits.detach().cpu()[real_BT], want[real_BT], right)
        return replace(verdict, coordinate=unpacked(verdict.coordinate, real_BT))

    def _crop(self, cache: int, _pieces: list[Piece], length: int) -> None:
        model, held = self._held(cache)
        # There was more to go back from where it was not refused, and rows were alike where it was reset.
        if length > held.used or held.uneven:
            return
        model.crop(held.own, length)
        held.cut(length)

    def _reorder(self, cache: int, _pieces: list[Piece], rows: tuple[int, ...]) -> None:
        model, held = self._held(cache)
        model.reorder(held.own, self._there(rows))
        held.rows = [held.rows[row] for row in rows]

    def _reset(self, cache: int, _pieces: list[Piece]) -> None:
        model, held = self._held(cache)
        model.reset(held.own)
        held.cut(0)
        held.uneven = False

    def _pass(self, which: int, pieces: list[Piece], n: int) -> Verdict:
        tokens = self._tokens(pieces)
        logits = self._model(which).logits(self._there(tokens))
        right = self._right(which, tokens, [(PASS, n)])
        return self._judged(logits, right.logits[:, :n], right)

    def _judged(self, logits: Tensor, want: Tensor, right: Right) -> Verdict:
        dtype = self._case.torch_dtype
        wrong = malformed(logits, want, dtype)
        if wrong is None and want.numel() == 0:
            return exact(True, "shape", "")
        return wrong or compare(logits, want, dtype, right.allowed)

    def _ahead(self, cache: int) -> list[tuple[int, int]]:
        sketch = self.plan.caches[cache]
        return list(zip(sketch.streams, sketch.offset, strict=True))

    def _right(self, which: int, rows: list[Row], ahead: list[tuple[int, int]]) -> Right:
        """Of the rows and what comes next in their streams, up to one length for all."""
        length = length_of(max(map(len, rows)))
        whole = (
            row + self._case.tokens((stream, at, at + length - len(row)))
            for row, (stream, at) in zip(rows, ahead, strict=True)
        )
        return right_of(self._cases[which], tuple(whole))

    def _refusal(self, error: Exception, held: Held, n: int) -> Verdict:
        """The verdict on an exception: what fits must be taken, what does not may be refused in words."""
        said = describe_exception(error)
        if held.has_room(n):
            reason = f"{n} of {held.capacity - held.used} tokens that fit are refused: {said}"
            return exact(False, "refusal", reason)
        held.refused = held.refused or n > 0
        self._facts["refuses what does not fit" if n else "refuses no tokens"] = said[:300]
        return exact(bool(str(error).strip()), "refusal", f"refuses without a word: {type(error).__name__}")


def unpacked(coordinate: tuple[int, ...], real_BT: Tensor) -> tuple[int, ...]:
    """Row and token in the place of the number of a real token."""
    if not coordinate:
        return ()
    which, *rest = coordinate
    return (*(int(i) for i in real_BT.nonzero()[which]), *rest)


def played(subject: Subject, case: HistoryCase, about: str = "new") -> Verdict:
    """The verdict on a history, up to the first event that is not as it should be.

    Args:
        subject: who.
        case: what is done.
        about: the event that it is there for.

    Raises:
        Unsupported: that event is not offered.
    """
    player = Player(subject, case)
    for event in case.events:
        player.play(event)
        if player.failed:
            break
    return player.verdict(about)
