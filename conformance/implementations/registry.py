"""Names to implementations: what --impl may say. Nothing heavy is imported to answer."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conformance.implementations.base import Implementation

# name: (home, class, module that must be installed, what installs it)
BUILTIN: dict[str, tuple[str, str, str, str]] = {
    "reference": ("reference", "Reference", "torch", "torch"),
    "huggingface-eager": ("huggingface", "HuggingFaceEager", "transformers", "transformers"),
    "huggingface-sdpa": ("huggingface", "HuggingFaceSdpa", "transformers", "transformers"),
    "litgpt": ("litgpt", "LitGPT", "litgpt", "litgpt"),
    # --no-deps: its declared dependencies include tensorflow and jupyterlab; its Llama needs tiktoken alone.
    "llms-from-scratch": (
        "llms_from_scratch",
        "LLMsFromScratch",
        "llms_from_scratch",
        "--no-deps llms-from-scratch tiktoken",
    ),
    "torch": ("torch_ops", "TorchOps", "torch", "torch"),
}
GROUPS = {"huggingface": ("huggingface-eager", "huggingface-sdpa")}
FAULT_PREFIX = "fault:"


def installed(name: str) -> bool:
    """Whether a built-in implementation's library is there."""
    return importlib.util.find_spec(BUILTIN[name][2]) is not None


def default_names() -> list[str]:
    """Every built-in implementation whose library is installed."""
    return [name for name in BUILTIN if installed(name)]


def absent() -> dict[str, str]:
    """Built-in implementations that are not installed, with what installs them."""
    return {name: f"pip install {entry[3]}" for name, entry in BUILTIN.items() if not installed(name)}


def expand(names: list[str]) -> list[str]:
    """The names of single implementations that --impl's values stand for.

    Raises:
        ValueError: neither built in, nor a fault, nor a place of the user's; lists what exists.
    """
    singles: list[str] = []
    for name in names:
        if name in GROUPS:
            singles += GROUPS[name]
        elif name in BUILTIN or name.startswith(FAULT_PREFIX) or is_place(name):
            singles.append(name)
        else:
            raise ValueError(
                f"unknown implementation {name!r}; there are {', '.join([*BUILTIN, *GROUPS])}, "
                "fault:NAME (python -m conformance faults lists them), path/to/mine.py:build and "
                "package.module:build"
            )
    missing = [n for n in singles if n in BUILTIN and not installed(n)]
    if missing:
        raise ValueError(f"{', '.join(missing)}: not installed; {absent()[missing[0]]}")
    return list(dict.fromkeys(singles))


def is_place(name: str) -> bool:
    """Whether a name can be a file or a module of the user's."""
    package = name.partition(".")[0]
    return (
        name.endswith(".py") or ":" in name or ("." in name and importlib.util.find_spec(package) is not None)
    )


def get(name: str) -> Implementation:
    """The implementation of a single name that is no fault.

    Raises:
        ValueError: as expand, or what stands there is no implementation.
    """
    if name in BUILTIN:
        home, cls, _, _ = BUILTIN[name]
        module = importlib.import_module(f"conformance.implementations.{home}")
        implementation: Implementation = getattr(module, cls)()
        return implementation
    from conformance.implementations.user import load  # noqa: PLC0415 - only for the user's own

    return load(name)
