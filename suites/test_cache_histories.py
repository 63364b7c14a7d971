"""CACHE: whatever is done with caches, every logit is that of one pass over the row.

A history is a list of events, see conformance/cases/history.py. Cache 2 is one of another model.
"""

from itertools import product

from conformance import HistoryCase, check, histories


def cases_of(*events, regime="loud"):
    """A history of an untied and a tied model in float32, and of the first in 16-bit."""

    def cases(selection):
        for dtype in selection.dtypes:
            for variant, shape in selection.few() if dtype == "float32" else selection.few()[:1]:
                yield HistoryCase(dtype=dtype, variant=variant, shape=shape, regime=regime, events=events)

    return cases


# Exactly full, then poisoned once more where memory is only now there; then with room to spare. Attention to
# slots that hold zeros shows best where scores are small.
ROOMS = (
    ("new", 0, 2, 8, 1),
    ("poison", 0),
    ("step", 0, 5),
    ("step", 0, 3),
    ("reset", 0),
    ("poison", 0),
    ("step", 0, 4),
    ("step", 0, 1),
    ("new", 1, 2, 24, 0),
    ("poison", 1),
    ("step", 1, 5),
    ("step", 1, 1),
)


@check("CACHE-4", cases=cases_of(*ROOMS, regime="quiet"))
def test_neither_capacity_nor_unwritten_slots_matter(subject, case):
    return histories.played(subject, case)


# Three caches of one size in turns, one of them another model's.
TURNS = (
    ("new", 0, 2, 12, 0),
    ("step", 0, 5),
    ("new", 1, 2, 12, 0),
    ("step", 1, 4),
    ("new", 2, 2, 12, 0),
    ("step", 2, 3),
    ("step", 0, 1),
    ("pass", 0, 7),
    ("step", 1, 1),
    ("step", 0, 2),
)
RESET = (
    ("new", 0, 2, 12, 0),
    ("prefill", 0, (3, 5)),
    ("step", 0, 2),
    ("new", 1, 2, 12, 0),
    ("reset", 0),
    ("step", 0, 4),
    ("step", 0, 1),
    ("new", 1, 2, 12, 1),
    ("step", 1, 5),
    ("step", 1, 1),
    ("reset", 1),
    ("step", 1, 3),
    ("step", 1, 1),
)


@check("CACHE-5", cases=cases_of(*TURNS))
def test_caches_used_in_turns_do_not_touch_one_another(subject, case):
    return histories.played(subject, case)


@check("CACHE-5", cases=cases_of(*RESET))
def test_a_cache_that_was_reset_has_forgotten(subject, case):
    return histories.played(subject, case, about="reset")


# A window of 12: up to its edge, one token at a time over it, a chunk as long, one that wraps; then a prompt
# and a chunk that are longer. A key more or less shows best where all weigh the same: in a quiet model.
WINDOWS = (
    ("new", 0, 2, 46, 0),
    ("step", 0, 7),
    ("step", 0, 4),
    ("step", 0, 1),
    ("step", 0, 1),
    ("step", 0, 12),
    ("step", 0, 5),
    ("new", 1, 2, 46, 1),
    ("step", 1, 15),
    ("step", 1, 1),
    ("step", 1, 4),
    ("step", 1, 17),
)
# Rows of which one is padded by more than the window leaves.
UNEVEN_WINDOWS = (
    ("new", 0, 2, 40, 0),
    ("prefill", 0, (4, 14)),
    ("step", 0, 1),
    ("step", 0, 3),
    ("step", 0, 9),
)


def windowed(*events, regimes):
    """A history of every small model with a sliding window."""

    def cases(selection):
        for dtype, regime in product(selection.dtypes, regimes):
            for variant, shape in selection.smalls():
                case = HistoryCase(dtype=dtype, variant=variant, shape=shape, regime=regime, events=events)
                if case.config.sliding_window is not None:
                    yield case

    return cases


@check("CACHE-8", cases=windowed(*WINDOWS, regimes=("quiet", "loud")))
def test_a_sliding_window_is_the_same_with_a_cache(subject, case):
    return histories.played(subject, case)


@check("CACHE-8", cases=windowed(*UNEVEN_WINDOWS, regimes=("loud",)))
def test_a_sliding_window_is_the_same_for_rows_of_different_length(subject, case):
    return histories.played(subject, case, about="prefill")


@check("CACHE-8", cases=windowed(*WINDOWS, regimes=("quiet",)), draws=histories.sliding_history)
def test_any_history_of_a_sliding_window_gives_the_logits_of_one_pass(subject, case):
    return histories.played(subject, case)


UNEVEN = (
    ("new", 0, 3, 12, 0),
    ("prefill", 0, (3, 5, 1)),
    ("step", 0, 1),
    ("step", 0, 3),
    ("new", 1, 3, 12, 1),
    ("prefill", 1, (2, 1, 4)),
    ("step", 1, 1),
    ("reorder", 1, (2, 0, 0)),
    ("step", 1, 2),
)


@check("CACHE-9", cases=cases_of(*UNEVEN))
def test_rows_of_different_length_go_on_each_at_its_own(subject, case):
    return histories.played(subject, case, about="prefill")


# By more than comes next, so that what is left of it would be seen; by one; to nothing.
DRAFTS = (
    ("new", 0, 2, 12, 0),
    ("step", 0, 6),
    ("crop", 0, 3),
    ("step", 0, 1),
    ("step", 0, 2),
    ("crop", 0, 5),
    ("step", 0, 3),
    ("new", 1, 2, 12, 1),
    ("step", 1, 6),
    ("crop", 1, 3),
    ("step", 1, 2),
    ("crop", 1, 0),
    ("step", 1, 4),
)
# No permutation that is its own inverse, then rows twice.
BEAMS = (
    ("new", 0, 3, 12, 0),
    ("step", 0, 4),
    ("reorder", 0, (1, 2, 0)),
    ("step", 0, 1),
    ("new", 1, 3, 12, 1),
    ("step", 1, 4),
    ("reorder", 1, (1, 0, 1)),
    ("step", 1, 1),
    ("step", 1, 2),
)


@check("CACHE-10", cases=cases_of(*DRAFTS))
def test_what_was_rolled_back_had_never_been(subject, case):
    return histories.played(subject, case, about="crop")


@check("CACHE-10", cases=cases_of(*BEAMS))
def test_rows_follow_the_beams(subject, case):
    return histories.played(subject, case, about="reorder")


# Nothing, more than fits, again; what fits, to the last slot; one more.
OVERFLOWS = (
    ("new", 0, 2, 8, 0),
    ("step", 0, 5),
    ("step", 0, 0),
    ("step", 0, 4),
    ("step", 0, 1),
    ("step", 0, 2),
    ("step", 0, 1),
    ("new", 1, 2, 8, 1),
    ("step", 1, 5),
    ("step", 1, 4),
    ("step", 1, 3),
    ("step", 1, 1),
)


@check("CACHE-11", cases=cases_of(*OVERFLOWS))
def test_what_does_not_fit_is_refused_and_nothing_is_lost(subject, case):
    return histories.played(subject, case)


# Room for less than the window of 12.
NARROW_OVERFLOWS = (
    ("new", 0, 2, 8, 0),
    ("step", 0, 5),
    ("step", 0, 3),
    ("step", 0, 1),
    ("new", 1, 2, 8, 1),
    ("step", 1, 5),
    ("step", 1, 3),
    ("step", 1, 1),
)


@check("CACHE-11", cases=windowed(*NARROW_OVERFLOWS, regimes=("quiet",)))
def test_room_for_less_than_the_window_is_no_smaller_window(subject, case):
    """Right, or refused: never a window of as much as there is room for."""
    return histories.played(subject, case)


ANYTHING = (
    ("new", 0, 2, 12, 0),
    ("step", 0, 5),
    ("crop", 0, 3),
    ("new", 1, 1, 8, 1),
    ("step", 1, 9),
    ("reorder", 0, (1, 1)),
    ("pass", 1, 4),
    ("step", 0, 4),
)


@check("CACHE-5", cases=cases_of(*ANYTHING), draws=histories.any_history)
def test_any_history_of_a_cache_gives_the_logits_of_one_pass(subject, case):
    return histories.played(subject, case)
