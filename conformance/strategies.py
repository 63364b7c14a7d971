"""Hypothesis strategies over cases: what is drawn on top of the covering lists.

Sampled choices put the powerful ones first, since Hypothesis tries and shrinks towards the front. Tensors are
built from a drawn seed and pattern: arrays drawn element by element are nearly constant.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from conformance.cases import (
    AttentionCase,
    Case,
    Changes,
    GateCase,
    MaskedAttentionCase,
    ModelCase,
    NormCase,
    PackedCase,
    PaddedCase,
    RotateCase,
    TableCase,
)
from conformance.cases.batches import Side, Sight
from conformance.cases.model import Places
from conformance.checks import Selection
from conformance.inputs import PATTERNS, Layout, Pattern
from conformance.weights import REGIMES

seeds = st.integers(0, 10_000)
# Of one-hot vectors a row of scores may be zero, and has no scale.
DENSE: tuple[Pattern, ...] = ("noise", "rows", "outlier")
# Views of which each element has a place of its own.
VIEWS: tuple[Layout, ...] = ("contiguous", "sliced", "transposed")
# Of two rows, the worst that the yardsticks err may be small by luck, and the budget with it.
ROWS = 6


def dtypes(selection: Selection, only: tuple[str, ...] = ()) -> st.SearchStrategy[str]:
    """The selected dtypes, of these where any are given."""
    return st.sampled_from([d for d in only or selection.dtypes if d in selection.dtypes])


def norms(selection: Selection, only: tuple[str, ...] = ()) -> st.SearchStrategy[Case]:
    """Rows of any width, size and pattern; in these dtypes only, if any are given."""
    return st.builds(
        NormCase,
        dtype=dtypes(selection, only),
        seed=seeds,
        n=st.sampled_from([8, 2, 48, 129, 1024]),
        sequences=st.sampled_from([0, 2]),
        rows=st.integers(1, 7),
        layout=st.sampled_from(VIEWS),
        eps=st.sampled_from([1e-5, 1e-6, 0.1]),
        pattern=st.sampled_from(PATTERNS),
        scale=st.sampled_from([1.0, 1e-3, 1e-4, 300.0]),
    )


def gates(selection: Selection) -> st.SearchStrategy[Case]:
    """Gate and up of any size and pattern."""
    return st.builds(
        GateCase,
        dtype=dtypes(selection),
        seed=seeds,
        width=st.sampled_from([80, 1, 33]),
        sequences=st.sampled_from([0, 2]),
        rows=st.integers(1, 7),
        layout=st.sampled_from(VIEWS),
        pattern=st.sampled_from(PATTERNS),
        scale=st.sampled_from([10.0, 1.0, 1e-3]),
    )


def tables(selection: Selection, rope_types: tuple[str, ...]) -> st.SearchStrategy[Case]:
    """Tables of the selected variants whose frequency rule is one of rope_types."""
    pairs = table_configs(selection, rope_types)
    return st.sampled_from(pairs).flatmap(
        lambda pair: st.builds(
            TableCase,
            variant=st.just(pair[0]),
            shape=st.just(pair[1]),
            start=st.integers(0, 131_000),
            tokens=st.integers(1, 65),
            stride=st.integers(1, 997),
        )
    )


def table_configs(selection: Selection, rope_types: tuple[str, ...]) -> list[tuple[str, str]]:
    """(variant, shape) of the selected variants with one of these frequency rules, real configs first."""
    chosen = [v for v in selection.variants if v.config.rope.rope_type in rope_types]
    return [(v.name, "real") for v in chosen] + [(v.name, "gqa") for v in chosen if "gqa" in v.small]


def rotations(
    selection: Selection,
    shifts: st.SearchStrategy[int],
    fewest: int = 1,
    patterns: tuple[Pattern, ...] = PATTERNS,
) -> st.SearchStrategy[Case]:
    """q and k of any heads and width, at any positions, of fewest tokens or more."""
    return st.builds(
        RotateCase,
        dtype=dtypes(selection),
        seed=seeds,
        batch=st.integers(1, 3),
        heads=st.just(6),
        kv_heads=st.sampled_from([2, 1, 3, 6]),
        head_dim=st.sampled_from([16, 8, 2, 64]),
        tokens=st.integers(fewest, 17),
        start=st.integers(0, 200),
        shift=shifts,
        theta=st.sampled_from([5e5, 1e4, 1e6]),
        pattern=st.sampled_from(patterns),
        layout=st.sampled_from(VIEWS),
    )


def attentions(
    selection: Selection, layouts: tuple[Layout, ...] = ("contiguous",)
) -> st.SearchStrategy[Case]:
    """Attention over any heads, width and lengths, with and without earlier keys, in one of these layouts."""
    return st.builds(
        AttentionCase,
        dtype=dtypes(selection),
        seed=seeds,
        batch=st.integers(1, 3),
        heads=st.just(6),
        kv_heads=st.sampled_from([2, 3, 1, 6]),
        head_dim=st.sampled_from([16, 8, 32]),
        tokens=st.integers(1, 65),
        past=st.sampled_from([0, 7, 64]),
        pattern=st.sampled_from(PATTERNS),
        gain=st.sampled_from([2.0, 0.1, 10.0]),
        layout=st.sampled_from(layouts),
    )


def models(
    selection: Selection,
    *,
    only: tuple[str, ...] = (),
    chunked: bool = False,
    tokens: tuple[int, int] = (2, 80),
    batch: tuple[int, int] = (1, 3),
    places: tuple[Places, ...] = ("run",),
    but: tuple[Changes, ...] = ((),),
) -> st.SearchStrategy[Case]:
    """Small models of the selected variants, in any regime, on any batch.

    Args:
        selection: variants and dtypes.
        only: these dtypes; the selected ones where empty.
        chunked: split the tokens into chunks.
        tokens, batch: the fewest and the most.
        places: where the tokens may stand.
        but: changes of the config, one of which is made.
    """
    drawn = st.tuples(st.sampled_from(selection.smalls()), st.integers(*tokens))
    return drawn.flatmap(
        lambda one: st.builds(
            ModelCase,
            dtype=dtypes(selection, only),
            seed=st.integers(0, 50),
            variant=st.just(one[0][0]),
            shape=st.just(one[0][1]),
            regime=st.sampled_from(REGIMES),
            batch=st.integers(min(max(batch[0], -(-ROWS // one[1])), batch[1]), batch[1]),
            tokens=st.just(one[1]),
            chunks=partitions(one[1]) if chunked else st.just(()),
            layer=st.integers(0, 1),
            places=st.sampled_from(places),
            but=st.sampled_from(but),
        )
    )


def partitions(tokens: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Ways to split a number of tokens into chunks of at least one."""
    cuts = st.sets(st.integers(1, tokens - 1), max_size=8)
    return cuts.map(
        lambda c: tuple(b - a for a, b in zip([0, *sorted(c)], [*sorted(c), tokens], strict=True))
    )


def masked(selection: Selection, *sights: Sight) -> st.SearchStrategy[Case]:
    """Attention under one of these masks, over any heads and lengths."""
    return st.builds(
        MaskedAttentionCase,
        dtype=dtypes(selection),
        seed=seeds,
        batch=st.integers(2, 3),
        kv_heads=st.sampled_from([2, 3, 1, 6]),
        head_dim=st.sampled_from([16, 8, 32]),
        tokens=st.integers(3, 33),
        past=st.sampled_from([0, 7, 64]),
        sight=st.sampled_from(sights),
    )


def many(lengths: Sequence[int]) -> bool:
    """Whether there are rows enough for a budget."""
    return sum(lengths) >= ROWS


def padded(selection: Selection) -> st.SearchStrategy[Case]:
    """Small models of the selected variants on rows of different length, a few tokens in the first."""
    sides: tuple[Side, ...] = ("left", "right")
    lengths = st.tuples(st.integers(2, 9), st.integers(0, 40), st.integers(0, 40)).filter(many)
    return st.tuples(st.sampled_from(selection.smalls()), lengths, st.integers(0, 9)).flatmap(
        lambda one: st.builds(
            PaddedCase,
            dtype=dtypes(selection),
            seed=st.integers(0, 50),
            variant=st.just(one[0][0]),
            shape=st.just(one[0][1]),
            regime=st.sampled_from(REGIMES),
            batch=st.just(len(one[1])),
            tokens=st.just(max(one[1]) + one[2]),
            lengths=st.just(one[1]),
            side=st.sampled_from(sides),
            filler=st.integers(0, 130),
        )
    )


def packed(selection: Selection) -> st.SearchStrategy[Case]:
    """Small models of the selected variants on rows of two documents and more."""
    documents = st.lists(st.integers(1, 17), min_size=2, max_size=6).filter(many).map(tuple)
    return st.tuples(st.sampled_from(selection.smalls()), documents).flatmap(
        lambda one: st.builds(
            PackedCase,
            dtype=dtypes(selection),
            seed=st.integers(0, 50),
            variant=st.just(one[0][0]),
            shape=st.just(one[0][1]),
            regime=st.sampled_from(REGIMES),
            batch=st.integers(2, 3),
            tokens=st.just(sum(one[1])),
            documents=st.just(one[1]),
            reset=st.booleans(),
        )
    )
