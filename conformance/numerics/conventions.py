"""Which of the accepted conventions an implementation follows: seen to the bit, reported, not judged."""

from __future__ import annotations

import torch
from torch import Tensor

from conformance.cases import NormCase
from conformance.numerics import answers
from conformance.numerics.settings import CAST_THEN_WEIGHT, WEIGHT_THEN_CAST, Setting

NORM_CONVENTIONS = {"cast, then weight": CAST_THEN_WEIGHT, "weight, then cast": WEIGHT_THEN_CAST}


def norm_convention(actual: Tensor, case: NormCase) -> str:
    """The order of weight and cast that gives a norm's very bits; "neither to the bit" where none does.

    Args:
        actual: what rms_norm gave for case.inputs(), 16-bit.
        case: the question.
    """
    for name, ops in NORM_CONVENTIONS.items():
        if torch.equal(actual.cpu(), answers.rms_norm(case, Setting(dtype=case.torch_dtype, ops=ops))):
            return name
    return "neither to the bit"
