"""The largest tensor that is made while something runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from conformance.numerics.verdict import Verdict


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside it, the result of every operation of torch is looked at; the largest one is remembered.

    What counts is the memory behind a result, not its shape: an expanded view is as small as its storage.
    What a kernel needs for itself alone is not seen.

    Attributes:
        elements: of the largest storage seen.
        largest: its tensor's shape and the operation that made it, in words.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = 0
        self.largest = "none"

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the operation and look at what it gives."""
        result = func(*args, **(kwargs or {}))
        self.look(str(func), (t for t in tree_leaves(result) if isinstance(t, Tensor)))
        return result

    def look(self, source: str, tensors: Iterable[Tensor]) -> None:
        """Look at tensors; source says where they are from."""
        for t in tensors:
            if t.device.type == "meta" or t.layout != torch.strided:
                continue
            elements = t.untyped_storage().nbytes() // t.itemsize
            if elements > self.elements:
                self.elements = elements
                self.largest = f"{list(t.shape)} {t.dtype} by {source}, {elements:,} elements"


def judge_largest(watch: Watch, most: int, why: str) -> Verdict:
    """Whether no tensor was made of as many elements as most.

    Args:
        watch: what was seen.
        most: elements.
        why: what such a tensor would be, for the reason.
    """
    passed = watch.elements < most
    return Verdict(
        passed=passed,
        measure="elements",
        error=float(watch.elements),
        budget=float(most),
        reason="" if passed else f"the largest tensor is {watch.largest}: {why}",
        facts={"largest tensor": watch.largest},
    )
