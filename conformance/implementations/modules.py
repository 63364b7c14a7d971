"""What the adapters of libraries made of torch.nn modules share: weights in, a private view, taps out."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from conformance.implementations.base import Held
from reference_impl import LlamaConfig

M = TypeVar("M", bound=nn.Module)
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def dtype_and_device(weights: Mapping[str, Tensor]) -> tuple[torch.dtype, torch.device]:
    """The one dtype and the one device of all weights.

    Raises:
        ValueError: there are no weights, or they disagree; names the first tensor that differs.
    """
    if not weights:
        raise ValueError("the state_dict is empty, expected the canonical weights of the config")
    (first, model), *others = weights.items()
    for name, value in others:
        if (value.dtype, value.device) != (model.dtype, model.device):
            raise ValueError(
                f"{name} is {value.dtype} on {value.device}, expected {model.dtype} on {model.device} as "
                f"{first}; cast all weights to one dtype, on one device"
            )
    return model.dtype, model.device


def refuse_tied_head(config: LlamaConfig, weights: Mapping[str, Tensor]) -> None:
    """Refuse an unembedding of its own where the config ties it: one of the two would be ignored.

    Raises:
        ValueError: lm_head.weight is given and tie_word_embeddings is set.
    """
    if config.tie_word_embeddings and HEAD in weights:
        raise ValueError(
            f"unexpected tensor {HEAD}: the config ties it to {EMBEDDING}; "
            "drop it from the weights, or set tie_word_embeddings to False"
        )


class NoInit(TorchFunctionMode):
    """Inside it, torch.nn.init leaves parameters as allocated: they are about to be loaded.

    Neither time nor numbers of the global generator are spent, and nothing is patched.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Hand back the tensor instead of filling it."""
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Allocate in this dtype where a library does not say which; the default is put back."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def share_weights(module: M) -> M:
    """A second tree of modules on the very same parameters and buffers; what is set on it stays its own."""
    memo: dict[int, Any] = {id(t): t for t in (*module.parameters(), *module.buffers())}
    return copy.deepcopy(module, memo)


def held(module: nn.Module) -> list[Held]:
    """Every parameter and buffer; a tensor under two names is listed twice."""
    saved = module.state_dict(keep_vars=True)
    parameters = module.named_parameters(remove_duplicate=False)
    buffers = module.named_buffers(remove_duplicate=False)
    return [
        *(Held(name=n, tensor=p.detach(), kind="parameter", saved=n in saved) for n, p in parameters),
        *(Held(name=n, tensor=b, kind="buffer", saved=n in saved) for n, b in buffers),
    ]


def cast(module: M, dtype: torch.dtype) -> M:
    """A copy of the module, cast as users of torch cast one: .to(dtype), which casts buffers too."""
    return copy.deepcopy(module).to(dtype)


def gradients(module: M, loss: Callable[[M], Tensor]) -> list[Tensor]:
    """What a backward pass leaves in .grad, of a copy of the module."""
    trained = copy.deepcopy(module).requires_grad_(True)
    with torch.enable_grad():
        loss(trained).backward()  # type: ignore[no-untyped-call]
    return [p.grad for p in trained.parameters() if p.grad is not None]


class Pick(nn.Module):
    """Stands in for a projection: hands out one of several given inputs.

    So an op in the middle of a library's module is reached through the module's own forward.
    """

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index

    def forward(self, inputs: tuple[Tensor, ...]) -> Tensor:
        """The input at the index."""
        return inputs[self.index]


def split_heads(x: Tensor, head_dim: int) -> Tensor:
    """[B, T, heads · d] → [B, heads, T, d]."""
    return x.reshape(*x.shape[:-1], -1, head_dim).transpose(1, 2)


@contextmanager
def watching(
    root: nn.Module,
    show: Callable[[str, Tensor], None],
    *,
    inputs: Mapping[str, str],
    outputs: Mapping[str, str],
) -> Iterator[None]:
    """Show what modules are given and what they give; the hooks are gone afterwards.

    Args:
        root: where the modules are found.
        show: is given the tap's name and the tensor, in the order of the computation.
        inputs, outputs: module path → tap name.
    """

    def hook(tap: str) -> Callable[..., None]:
        def look(_module: nn.Module, _given: tuple[Tensor, ...], result: Any) -> None:
            show(tap, result)

        return look

    def pre_hook(tap: str) -> Callable[..., None]:
        def look(_module: nn.Module, given: tuple[Tensor, ...]) -> None:
            show(tap, given[0])

        return look

    handles = [root.get_submodule(path).register_forward_pre_hook(pre_hook(t)) for path, t in inputs.items()]
    handles += [root.get_submodule(path).register_forward_hook(hook(t)) for path, t in outputs.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def per_layer(layers: int, paths: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Module path within a layer → tap, spelt out for all layers; the path "" is the layer itself."""
    return {
        f"{prefix}.{i}.{path}".rstrip("."): f"layers.{i}.{tap}"
        for i in range(layers)
        for path, tap in paths.items()
    }
