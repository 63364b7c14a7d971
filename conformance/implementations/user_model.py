"""A built model of the user's: its call, its optional methods, and what may come back from them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from conformance.implementations import modules, user_taps
from conformance.implementations.base import Held, Model, Show, Unsupported
from conformance.implementations.user_code import UserCode, signature_of
from reference_impl import LlamaConfig


def protocol(owner: type, name: str) -> str:
    """How the protocol calls a method, such as "(x, weight, eps)"; without what has a default."""
    parameters = list(inspect.signature(getattr(owner, name)).parameters.values())[1:]
    return f"({', '.join(p.name for p in parameters if p.default is p.empty)})"


def found(owner: Any, name: str) -> Callable[..., Any] | None:
    """A function or method of that name; a layer that happens to have it is none.

    A model's own torch.nn.Module called rms_norm is its last norm, not rms_norm(x, weight, eps).
    """
    function = getattr(owner, name, None)
    if not callable(function) or (isinstance(owner, nn.Module) and isinstance(function, nn.Module)):
        return None
    return function  # type: ignore[no-any-return]


def tensor(result: Any, title: str) -> Tensor:
    """What came back, if it is a tensor.

    Raises:
        ValueError: it is none.
    """
    if isinstance(result, Tensor):
        return result
    kind = type(result).__name__
    if isinstance(result, (tuple, list)):
        kind += f" of {', '.join(type(item).__name__ for item in result)}"
    raise ValueError(f"{title} returned {kind}, expected one tensor")


def pair(result: Any, title: str) -> tuple[Tensor, Tensor]:
    """What came back, if it is two tensors.

    Raises:
        ValueError: it is not.
    """
    if isinstance(result, (tuple, list)) and len(result) == 2 and all(isinstance(t, Tensor) for t in result):
        return result[0], result[1]
    shape = f" {list(result.shape)}" if isinstance(result, Tensor) else ""
    raise ValueError(f"{title} returned {type(result).__name__}{shape}, expected two tensors")


class UserModel(Model):
    """A callable tokens → logits, and whatever optional methods of Model it has.

    Args:
        model: what build() returned.
        config: what it was built for.
        dtype: of the weights.
        code: the way into it.
        table: tap → module path, where the user's file has one; see user_taps.
    """

    def __init__(
        self,
        model: Any,
        config: LlamaConfig,
        dtype: torch.dtype,
        code: UserCode,
        table: Mapping[str, str] | None = None,
    ) -> None:
        self.model = model
        self.config = config
        self.dtype = dtype
        self._code = code
        self._table = getattr(model, "TAPS", None) or table

    def logits(
        self, tokens_BT: Tensor, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """See Model.logits; positions and masks are passed on by name, where the model takes them.

        A mask comes as attention_mask, as tokenizers of transformers and its models have it: [B, T] int64, 1
        where a token is real, or [B, 1, T, T] bool, True = attend.
        """
        named = {}
        if positions is not None:
            named[self._keyword("logits at given positions", "positions", "position_ids")] = positions
        if mask is not None:
            name = self._keyword("logits under a mask", "attention_mask")
            named[name] = mask.long() if mask.ndim == 2 else mask[:, None]
        result = self._code.call("the model", "(tokens)", self.model, tokens_BT, **named)
        return self._as_logits(result, tokens_BT, "the model")

    def _keyword(self, capability: str, *names: str) -> str:
        """Which of some names its call takes."""
        signature = signature_of(self.model)
        for name in names:
            if signature is not None and name in signature.parameters:
                return name
        raise Unsupported(f"does not offer {capability}: its call takes no {' or '.join(names)}=")

    def _as_logits(self, result: Any, tokens_BT: Tensor, title: str) -> Tensor:
        """Logits [B, T, V] in the model's dtype, to which those that were widened at the end are rounded.

        Raises:
            ValueError: neither a tensor nor an output object with one in .logits, or without batch or tokens.
        """
        logits = tensor(getattr(result, "logits", result), title)
        if logits.ndim != 3 or logits.shape[:2] != tokens_BT.shape:
            batch, tokens = tokens_BT.shape
            raise ValueError(
                f"{title} returned logits of shape {list(logits.shape)} for tokens [{batch}, {tokens}], "
                f"expected [{batch}, {tokens}, V]: a row of logits for every token of every sequence"
            )
        widened = logits.dtype == torch.float32 and self.dtype.itemsize == 2
        return logits.to(self.dtype) if widened else logits

    def _ask(self, capability: str, *given: Any) -> Any:
        method, call = found(self.model, capability), protocol(Model, capability)
        if method is None:
            raise Unsupported(f"does not offer {capability}: no {capability}{call} in the model it builds")
        return self._code.call(capability, call, method, *given)

    def cache_kinds(self) -> tuple[str, ...]:
        """As it says, and else one.

        Raises:
            ValueError: what it says are no names.
        """
        if found(self.model, "cache_kinds") is None:
            return super().cache_kinds()
        kinds = self._ask("cache_kinds")
        if not isinstance(kinds, (tuple, list)) or not kinds or not all(isinstance(k, str) for k in kinds):
            raise ValueError(f"cache_kinds returned {kinds!r}, expected names of its kinds of cache")
        return tuple(kinds)

    def new_cache(self, batch: int, capacity: int, kind: str = "") -> Any:
        """See Model.new_cache; the kind is named where it has several."""
        return self._ask("new_cache", batch, capacity, *([kind] if kind else []))

    def step(self, tokens_BT: Tensor, cache: Any) -> Tensor:
        """See Model.step."""
        return self._as_logits(self._ask("step", tokens_BT, cache), tokens_BT, "step")

    def prefill(self, tokens_BT: Tensor, cache: Any, lengths_B: Tensor) -> Tensor:
        """See Model.prefill."""
        return self._as_logits(self._ask("prefill", tokens_BT, cache, lengths_B), tokens_BT, "prefill")

    def reset(self, cache: Any) -> None:
        """See Model.reset."""
        self._ask("reset", cache)

    def crop(self, cache: Any, length: int) -> None:
        """See Model.crop."""
        self._ask("crop", cache, length)

    def reorder(self, cache: Any, rows_B: Tensor) -> None:
        """See Model.reorder."""
        self._ask("reorder", cache, rows_B)

    def attention_module(self, x_BTD: Tensor, positions: Tensor, layer: int) -> Tensor:
        """See Model.attention_module."""
        return tensor(self._ask("attention_module", x_BTD, positions, layer), "attention_module")

    def mlp(self, x_BTD: Tensor, layer: int) -> Tensor:
        """See Model.mlp."""
        return tensor(self._ask("mlp", x_BTD, layer), "mlp")

    def block(self, x_BTD: Tensor, positions: Tensor, layer: int) -> Tensor:
        """See Model.block."""
        return tensor(self._ask("block", x_BTD, positions, layer), "block")

    def watch(self, tokens_BT: Tensor, show: Show) -> None:
        """What its taps gives, or what the modules of a torch.nn.Module with a table TAPS do."""
        if found(self.model, "taps") is None and self._table:
            self._watch(self._table, tokens_BT, show)
            return
        for name, value in self._ask("taps", tokens_BT).items():
            show(name, tensor(value, name))

    def _watch(self, table: Mapping[str, str], tokens_BT: Tensor, show: Show) -> None:
        def outside(name: str, value: Tensor) -> None:
            with self._code.outside():
                show(name, value)

        with self._code.contained():
            user_taps.watch(self._module("taps"), table, self.config, tokens_BT, outside)

    def cache_tensors(self, cache: Any) -> list[Tensor]:
        """See Model.cache_tensors."""
        held = self._ask("cache_tensors", cache)
        return [tensor(value, "cache_tensors") for value in held if value is not None]  # not yet there

    def loss(self, tokens_BT: Tensor) -> Tensor:
        """See Model.loss."""
        return tensor(self._ask("loss", tokens_BT), "loss")

    def state_dict(self) -> dict[str, Tensor]:
        """Its state_dict, where a torch.nn.Module has the canonical names.

        Raises:
            Unsupported: it has none.
        """
        return {name: tensor(value, name) for name, value in self._ask("state_dict").items()}

    def _module(self, capability: str) -> nn.Module:
        if not isinstance(self.model, nn.Module):
            raise Unsupported(f"does not offer {capability}: what it builds is no torch.nn.Module")
        return self.model

    def held(self) -> list[Held]:
        """Of a torch.nn.Module."""
        return modules.held(self._module("held"))

    def cast(self, dtype: torch.dtype) -> Model:
        """module.to(dtype), of a copy."""
        module = self._module("cast")
        with self._code.contained():
            return UserModel(modules.cast(module, dtype), self.config, dtype, self._code, self._table)

    def reloaded(self, folder: Path) -> Model:
        """See Model.reloaded; it returns a model as build() does."""
        again = self._ask("reloaded", folder)
        if not callable(again):
            raise ValueError(  # noqa: TRY004 - as every wrong answer
                f"reloaded returned {type(again).__name__}, expected a model as build() returns one"
            )
        return UserModel(again, self.config, self.dtype, self._code, self._table)

    def gradients(self, tokens_BT: Tensor) -> list[Tensor]:
        """Of a torch.nn.Module that offers loss."""
        module = self._module("gradients")
        if found(module, "loss") is None:
            self._ask("loss", tokens_BT)  # says that it is not offered

        def loss(trained: nn.Module) -> Tensor:
            return UserModel(trained, self.config, self.dtype, self._code).loss(tokens_BT)

        return modules.gradients(module, loss)


def moved(module: nn.Module, like: Tensor) -> nn.Module:
    """The module where the weights are, and in their dtype, as its users would move it.

    A mixture of dtypes, of which one is the weights', is left as it was built.
    """
    floating = [p for p in module.parameters() if p.is_floating_point()]
    if floating and all(p.dtype != like.dtype for p in floating):
        module = module.to(like.dtype)
    if any(t.device != like.device for t in (*module.parameters(), *module.buffers())):
        module = module.to(like.device)
    return module
