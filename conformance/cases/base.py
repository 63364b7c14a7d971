"""What every case has: a frozen record of a few words and numbers that a seeded generator turns into tensors.

So it can be drawn, compared, cached by, printed, and pasted back with --case.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from conformance.inputs import DTYPES, Pattern, draw
from reference_impl import LlamaConfig


@dataclass(frozen=True, kw_only=True)
class Case:
    """What all cases have.

    Args:
        dtype: name of the dtype the implementation computes in.
        seed: of the generator.
    """

    kinds: ClassVar[dict[str, type[Case]]] = {}

    dtype: str = "float32"
    seed: int = 0

    def __init_subclass__(cls) -> None:
        Case.kinds[cls.__name__] = cls

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype itself."""
        return DTYPES[self.dtype]

    @property
    def subject(self) -> str:
        """The variant the record belongs to; "ops" where the case needs no architecture."""
        return str(getattr(self, "variant", "ops"))

    @property
    def spec(self) -> str:
        """The case as it is printed and pasted: its dtype, and what differs from the defaults."""
        given = [f for f in fields(self) if f.name == "dtype" or getattr(self, f.name) != f.default]
        return f"{type(self).__name__}({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in given)})"

    @property
    def question(self) -> Case:
        """The case without what does not change the right answer, so that cases can share an oracle."""
        return self.twin

    @property
    def twin(self) -> Case:
        """The first case that asks the same of the same architecture; variants may share a small config."""
        return self

    def _draw(self, offset: int, shape: tuple[int, ...], pattern: Pattern, scale: float = 1.0) -> Tensor:
        return draw(shape, 1000 * self.seed + offset, pattern, scale, self.torch_dtype)


Changes = tuple[tuple[str, Any], ...]


def changed(config: LlamaConfig, but: Changes) -> LlamaConfig:
    """A config that differs in some fields; those of the frequency rule are spelt "rope.factor".

    Raises:
        ValueError: the config has no such field, or it does not fit the others.
    """
    if not but:
        return config
    of_rope = {name.removeprefix("rope."): value for name, value in but if name.startswith("rope.")}
    own = {name: value for name, value in but if not name.startswith("rope.")}
    try:
        return replace(config, rope=replace(config.rope, **of_rope), **own)
    except TypeError as error:
        raise ValueError(f"no config can be built with {but!r}: {error}") from error
