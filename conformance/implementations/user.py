"""The user's own code: a model built by build(config, weights), or functions that compute one part.

Nothing of it is imported before it is asked for, and whatever it raises is a result, not a crash. What was
typed decides where a part is looked for, see load().
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from conformance.implementations.base import OP_CAPABILITIES, Attend, Implementation, Unsupported
from conformance.implementations.user_code import UserCode, imported
from conformance.implementations.user_model import UserModel, found, moved, pair, protocol, tensor
from conformance.weight_maps import FORMATS
from conformance.weights import make_weights
from reference_impl import LlamaConfig

# Ops that are methods of a built model are asked for through the smallest one.
PROBE_CONFIG = LlamaConfig(
    vocab_size=131,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=1,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=16,
)
BUILD = "(config, weights)"


class User(Implementation):
    """An implementation found by --impl.

    Args:
        name: as it was given.
        build: build(config, weights) → model, or None.
        ops: a module or object with some of the ops, or None.
        code: the way into it.
        hint: module whose ops were not asked for, to say so.
    """

    def __init__(
        self,
        name: str,
        build: Callable[..., Any] | None,
        ops: Any = None,
        *,
        code: UserCode | None = None,
        hint: ModuleType | None = None,
    ) -> None:
        self.name = name
        self._build = build
        self._ops = ops
        self._code = code or UserCode()
        self._hint = hint
        self._probes: dict[torch.device, Any] = {}

    def build(self, config: LlamaConfig, weights: Mapping[str, Tensor]) -> UserModel:
        """Call the user's build with weights of its own; a module is moved to their dtype and device.

        Raises:
            Unsupported: there is no build, or it says so itself.
            ValueError: what it returned cannot be called.
        """
        if self._build is None:
            raise Unsupported(f"does not offer logits: {self.name} has no build{BUILD}")
        return self._made("build", self._build, config, weights)

    def formats(self) -> tuple[str, ...]:
        """As the module or object says; see Implementation.formats.

        Raises:
            Unsupported: it does not say.
            ValueError: what it says are no names of formats.
        """
        function = found(self._ops, "formats")
        if function is None:
            raise Unsupported(f"does not offer formats: no formats() in {self.name}")
        names = self._code.call("formats", "()", function)
        if not isinstance(names, (tuple, list)) or not set(names) <= set(FORMATS):
            raise ValueError(f"formats returned {names!r}, expected some of {', '.join(FORMATS)}")
        return tuple(names)

    def build_from(self, format_name: str, config: LlamaConfig, tensors: Mapping[str, Tensor]) -> UserModel:
        """The user's build_from beside build.

        Raises:
            Unsupported: there is none.
        """
        build = found(self._ops, "build_from")
        if build is None:
            call = protocol(Implementation, "build_from")
            raise Unsupported(f"does not offer build_from: no build_from{call} in {self.name}")
        return self._made("build_from", build, config, tensors, format_name)

    def _made(
        self,
        title: str,
        build: Callable[..., Any],
        config: LlamaConfig,
        weights: Mapping[str, Tensor],
        *before: Any,
    ) -> UserModel:
        """Call a way to build with config and weights of its own, behind the other arguments."""
        like = next(iter(weights.values()), torch.empty(0))
        given = {name: weight.clone() for name, weight in weights.items()}
        model = self._code.call(title, protocol(Implementation, title), build, *before, config, given)
        if not callable(model):
            raise ValueError(  # noqa: TRY004 - as every wrong answer
                f"{title} returned {type(model).__name__}, expected a callable tokens [B, T] → logits"
            )
        if isinstance(model, nn.Module):
            with self._code.contained():
                model = moved(model, like).eval()
        table = getattr(self._hint or self._ops, "TAPS", None)
        return UserModel(model, config, like.dtype, self._code, table)

    def build_adjacent(self, config: LlamaConfig, weights: Mapping[str, Tensor]) -> UserModel:
        """The user's build_adjacent beside build.

        Raises:
            Unsupported: there is none.
        """
        other = found(self._ops, "build_adjacent")
        if other is None:
            raise Unsupported(f"does not offer build_adjacent: no build_adjacent{BUILD} in {self.name}")
        return User(self.name, other, code=self._code).build(config, weights)

    def own_name(self, canonical: str) -> str:
        """As the module or object says, if it has such a function."""
        function = found(self._ops, "own_name") or found(self._hint, "own_name")
        if function is None:
            return canonical
        return str(self._code.call("own_name", "(canonical)", function, canonical))

    def capabilities(self) -> tuple[str, ...]:
        """The ops that are there, on a model that is built to see, and "logits" where there is a build."""
        own = [c for c in OP_CAPABILITIES if self._find(c, torch.device("cpu")) is not None]
        return (*own, *(["logits"] if self._build else []))

    def _find(self, op: str, device: torch.device) -> Callable[..., Any] | None:
        """The op itself: of the module or object that --impl names, else of a model that is built for it."""
        function = found(self._ops, op)
        if function is None and self._build is not None:
            if device not in self._probes:
                weights = make_weights(PROBE_CONFIG, 0, "loud")
                probe = self.build(PROBE_CONFIG, {name: w.to(device) for name, w in weights.items()})
                self._probes[device] = probe.model
            function = found(self._probes[device], op)
        return function

    def _ask(self, op: str, *given: Any) -> Any:
        call = protocol(Implementation, op)
        device = next((value.device for value in given if isinstance(value, Tensor)), torch.device("cpu"))
        function = self._find(op, device)
        if function is None:
            place = "the model it builds" if self._build else self.name
            reason = f"does not offer {op}: no {op}{call} in {place}"
            if found(self._hint, op):
                reason += f", and that beside it is judged by --impl {self.name.rpartition(':')[0]} alone"
            raise Unsupported(reason)
        return self._code.call(op, call, function, *given)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See Implementation.rms_norm."""
        return tensor(self._ask("rms_norm", x, weight, eps), "rms_norm")

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        """See Implementation.silu_mul."""
        return tensor(self._ask("silu_mul", gate, up), "silu_mul")

    def rope_tables(self, config: LlamaConfig, positions: Tensor) -> tuple[Tensor, Tensor]:
        """See Implementation.rope_tables."""
        return pair(self._ask("rope_tables", config, positions), "rope_tables")

    def apply_rope(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """See Implementation.apply_rope."""
        return pair(self._ask("apply_rope", q, k, cos, sin), "apply_rope")

    def attention_core(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
        """See Implementation.attention_core."""
        return tensor(self._ask("attention_core", q, k, v, mask, scale), "attention_core")

    def additive_attention_core(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
        """See Implementation.additive_attention_core."""
        name = "additive_attention_core"
        return tensor(self._ask(name, q, k, v, mask, scale), name)

    def apply_rope_adjacent(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """See Implementation.apply_rope_adjacent."""
        return pair(self._ask("apply_rope_adjacent", q, k, cos, sin), "apply_rope_adjacent")

    def attention_cores(self) -> dict[str, Attend]:
        """See Implementation.attention_cores."""
        cores = self._ask("attention_cores")
        if not (isinstance(cores, dict) and all(callable(core) for core in cores.values())):
            kind = type(cores).__name__
            raise ValueError(f"attention_cores returned {kind}, expected a dict from names to functions")
        call = protocol(Implementation, "attention_core")
        return {
            str(name): functools.partial(self._code.call, str(name), call, core)
            for name, core in cores.items()
        }

    def json_rope_tables(self, config_json: dict[str, Any], positions: Tensor) -> tuple[Tensor, Tensor]:
        """See Implementation.json_rope_tables."""
        return pair(self._ask("json_rope_tables", config_json, positions), "json_rope_tables")

    def ffn_width(self, hidden_size: int, multiple_of: int, multiplier: float) -> int:
        """See Implementation.ffn_width."""
        width: int = self._ask("ffn_width", hidden_size, multiple_of, multiplier)
        return width


def load(spec: str) -> User:
    """Find what --impl names.

    "path/mine.py" or "package.module" is all that stands there: build, and ops by their names; ops that are
    not there are looked for among the methods of the model that build returns.

    "path/mine.py:name" or "package.module:name" is that one thing and nothing beside it: a function or class
    to be called as build(config, weights), or an object with ops, and with a build if it has one.

    Raises:
        ValueError: no such file, module or name; nothing in it that is known here.
        ImportError: the file or module itself raised.
    """
    place, _, attribute = spec.partition(":")
    module, code = imported(place)
    if not attribute:
        build = found(module, "build")
        if build is None and not any(found(module, op) for op in OP_CAPABILITIES):
            raise ValueError(
                f"{place} has neither build{BUILD} nor any of {', '.join(OP_CAPABILITIES)}; "
                f"it has {_public(module)}"
            )
        return User(spec, build, module, code=code)
    if not hasattr(module, attribute):
        raise ValueError(f"{place} has no {attribute!r}; it has {_public(module)}")
    if attribute in OP_CAPABILITIES:
        raise ValueError(f"{attribute} is an op, not a build{BUILD}: judge it by --impl {place}")
    named = getattr(module, attribute)
    is_model_class = isinstance(named, type) and issubclass(named, nn.Module)
    if not is_model_class and any(found(named, op) for op in OP_CAPABILITIES):
        return User(spec, found(named, "build"), named, code=code)
    if not callable(named):
        raise ValueError(  # noqa: TRY004 - as every wrong name
            f"{spec} is {type(named).__name__}, expected build{BUILD} or an object with any of "
            f"{', '.join(OP_CAPABILITIES)}"
        )
    return User(spec, named, code=code, hint=module)


def _public(module: ModuleType) -> str:
    return ", ".join(sorted(n for n in vars(module) if not n.startswith("_"))) or "nothing"
