"""Kernels that are compiled for each shape: judged in the thorough profile, never by a fallback."""

import pytest
import torch

from conformance import AttentionCase, Selection, Subject, answers
from conformance.implementations.base import Unsupported
from conformance.implementations.compiled import by_a_kernel
from conformance.implementations.reference import Reference
from conformance.records import Status


class Compiled(Reference):
    """The reference with a compiled kernel that returns this many times the right answer."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def compiled_attention_core(self, q, k, v, mask, scale):
        return self.factor * self.attention_core(q, k, v, mask, scale)


def statuses(checks, factor, profile):
    (check,) = [c for c in checks if c.requirement == "ATTN-7"]
    selection = Selection(profile=profile, dtypes=("float32",))
    return {r.status for r in check.run(Subject(Compiled(factor)), selection)}


@pytest.mark.usefixtures("one_thread")
def test_a_wrong_compiled_kernel_falls_in_the_thorough_profile_alone(checks):
    assert Status.FAIL in statuses(checks, 0.9, "thorough")
    assert Status.FAIL not in statuses(checks, 1.0, "thorough")
    assert Status.FAIL not in statuses(checks, 0.9, "quick")


def test_a_fallback_is_unsupported_and_no_pass():
    from torch._dynamo.exc import FailOnRecompileLimitHit

    def attend(_block_mask):
        raise FailOnRecompileLimitHit("limit reached")

    with pytest.raises(Unsupported, match=r"not compiled \(FailOnRecompileLimitHit: limit reached\)"):
        by_a_kernel(attend, answers.causal(AttentionCase(tokens=3)))


def test_the_block_mask_is_the_mask():
    mask = torch.tensor([[True, False], [True, True]])
    seen = by_a_kernel(lambda block_mask: block_mask.mask_mod(0, 0, torch.tensor(0), torch.tensor(1)), mask)
    assert not seen
