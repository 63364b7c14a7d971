"""The user's own code: a model built by build(config, weights), or an object or module with ops.

Nothing of it is imported before it is asked for, and whatever it raises is a result, not a crash.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from conformance.implementations.base import (
    MODEL_CAPABILITIES,
    OP_CAPABILITIES,
    Implementation,
    Model,
    not_offered,
)
from conformance.weights import make_weights
from reference_impl import LlamaConfig

# Ops that live on a built model are asked for through the smallest one.
PROBE_CONFIG = LlamaConfig(
    vocab_size=131,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=1,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=16,
)


class UserModel(Model):
    """A callable tokens → logits, and whatever optional methods of Model it has.

    Args:
        model: what build() returned.
        dtype: of the weights.
    """

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        self.model = model
        self.dtype = dtype
        # Optional methods replace the protocol's, so that what is absent stays "does not offer …".
        for capability in ("new_cache", "step", *MODEL_CAPABILITIES):
            method = getattr(model, capability, None)
            if callable(method) and capability not in {"logits", "cache", "state_dict"}:
                setattr(self, capability, method)

    def logits(self, tokens_BT: Tensor, positions: Tensor | None = None) -> Tensor:
        """See Model.logits."""
        if positions is not None:
            if "positions" not in inspect.signature(self.model).parameters:
                raise not_offered("logits at given positions: its call takes no argument named positions")
            return checked(self.model(tokens_BT, positions=positions))
        return checked(self.model(tokens_BT))


def checked(logits: Any) -> Tensor:
    """What came back, if it is a tensor.

    Raises:
        ValueError: it is none.
    """
    if isinstance(logits, Tensor):
        return logits
    inner = getattr(logits, "logits", None)
    if isinstance(inner, Tensor):
        return inner
    raise ValueError(f"the model returned {type(logits).__name__}, expected a tensor of logits [B, T, V]")


class User(Implementation):
    """An implementation found by --impl.

    Args:
        name: as it was given.
        build: build(config, weights) → model, or None.
        ops: an object with some of the op capabilities, or None.
    """

    def __init__(self, name: str, build: Callable[..., Any] | None, ops: Any = None) -> None:
        self.name = name
        self._build = build
        self._ops = ops

    def build(self, config: LlamaConfig, weights: Mapping[str, Tensor]) -> Model:
        """Call the user's build; a module that is not in the weights' dtype is moved there, as users do."""
        if self._build is None:
            raise not_offered("logits: it has no build(config, weights)")
        dtype = weights["model.embed_tokens.weight"].dtype if weights else torch.float32
        model = self._build(config, {name: w.clone() for name, w in weights.items()})
        if not callable(model):
            raise ValueError(
                f"build() returned {type(model).__name__}, expected a callable tokens [B, T] -> logits [B, T, V]"
            )
        if isinstance(model, torch.nn.Module):
            model = model.eval()
            if any(p.dtype != dtype for p in model.parameters()):
                model = model.to(dtype)
        return UserModel(model, dtype)

    def capabilities(self) -> tuple[str, ...]:
        """The ops that were found, and "logits" where there is a build."""
        own = [c for c in OP_CAPABILITIES if callable(getattr(self._ops, c, None))]
        return (*own, *(["logits"] if self._build else []))

    @functools.cached_property
    def _probe(self) -> Any:
        if self._build is None:
            return None
        return self._build(PROBE_CONFIG, make_weights(PROBE_CONFIG, 0, "loud"))

    def _op(self, name: str) -> Callable[..., Any]:
        for owner in (self._ops, self._probe):
            op = getattr(owner, name, None)
            if callable(op):
                return op  # type: ignore[no-any-return]
        raise not_offered(name)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See Implementation.rms_norm."""
        return checked(self._op("rms_norm")(x, weight, eps))

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        """See Implementation.silu_mul."""
        return checked(self._op("silu_mul")(gate, up))

    def rope_tables(self, config: LlamaConfig, positions: Tensor) -> tuple[Tensor, Tensor]:
        """See Implementation.rope_tables."""
        cos, sin = self._op("rope_tables")(config, positions)
        return cos, sin

    def apply_rope(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """See Implementation.apply_rope."""
        q_rot, k_rot = self._op("apply_rope")(q, k, cos, sin)
        return q_rot, k_rot

    def attention_core(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
        """See Implementation.attention_core."""
        return checked(self._op("attention_core")(q, k, v, mask, scale))


def load(spec: str) -> User:
    """Find what "path/to/mine.py", "path/to/mine.py:build", "package.module" or "package.module:name" names.

    A bare file or module offers all it has: build, and ops by their names. After the colon stands either a
    function build(config, weights) or an object with ops.

    Raises:
        ValueError: no such file, module or name; nothing in it that is known here.
    """
    place, _, attribute = spec.partition(":")
    module = _import(place)
    if not attribute:
        build = getattr(module, "build", None)
        if build is None and not any(hasattr(module, c) for c in OP_CAPABILITIES):
            raise ValueError(
                f"{place} has neither build(config, weights) nor any of {', '.join(OP_CAPABILITIES)}; "
                f"it has {_public(module)}"
            )
        return User(spec, build, module)
    if not hasattr(module, attribute):
        raise ValueError(f"{place} has no {attribute!r}; it has {_public(module)}")
    found = getattr(module, attribute)
    if any(callable(getattr(found, c, None)) for c in OP_CAPABILITIES):
        return User(spec, getattr(found, "build", None), found)
    if not callable(found):
        raise ValueError(
            f"{spec} is {type(found).__name__}, expected build(config, weights) or an object with any of "
            f"{', '.join(OP_CAPABILITIES)}"
        )
    return User(spec, found)


def _public(module: ModuleType) -> str:
    return ", ".join(sorted(n for n in vars(module) if not n.startswith("_"))) or "nothing"


def _import(place: str) -> ModuleType:
    if not place.endswith(".py"):
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name and not place.startswith(error.name):
                raise
            raise ValueError(
                f"there is no module {place!r}; write path/to/file.py:build or package.module:build"
            ) from error
    path = Path(place).resolve()
    if not path.is_file():
        raise ValueError(f"there is no file {place!r} (looked at {path})")
    name = f"_conformance_user_{path.stem}_{abs(hash(path)):x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))  # a script's own folder is importable from it, as when it is run
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(str(path.parent))
    return module
