"""The way into user code: imported once, called with what the protocol promises, and contained.

A file that sets the float32 matmul precision to "medium" would have the float32 yardstick round to bfloat16
too, and its budget thousands of times wider; another default dtype would change what cases are drawn. So what
user code sets for the whole process holds while user code runs, and is put back in between.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

# The newer switches of torch for the precision of float32 products, by the place they stand in.
PRECISIONS = tuple(
    (owner, "fp32_precision")
    for owner in (torch.backends, torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None))
    if hasattr(owner, "fp32_precision")
)
# User code finds these again as it left them; what else is watched is only put back.
KEPT = ("default dtype", "default device", "matmul precision", "precisions", "random state", "autocast")


def process_settings() -> dict[str, Any]:
    """What a process has one of, and user code may set."""
    try:
        matmul = torch.get_float32_matmul_precision()
    except RuntimeError:  # the newer switches were used, which then speak alone
        matmul = ""
    device = torch.get_default_device()
    return {
        "default dtype": torch.get_default_dtype(),
        "default device": None if device == torch.device("cpu") else device,
        "matmul precision": matmul,
        "precisions": [getattr(*switch) for switch in PRECISIONS],
        "random state": torch.get_rng_state(),
        "threads": torch.get_num_threads(),
        "grad": torch.is_grad_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
    }


def change_settings(now: dict[str, Any], to: dict[str, Any]) -> None:
    """Set what differs."""
    changed = {name for name in to if not same(now[name], to[name])}
    if "default dtype" in changed:
        torch.set_default_dtype(to["default dtype"])
    if "default device" in changed:
        torch.set_default_device(to["default device"])
    if {"matmul precision", "precisions"} & changed:
        if to["matmul precision"]:
            torch.set_float32_matmul_precision(to["matmul precision"])
        for switch, value in zip(PRECISIONS, to["precisions"], strict=True):
            setattr(*switch, value)
    if "random state" in changed:
        torch.set_rng_state(to["random state"])
    if "threads" in changed:
        torch.set_num_threads(to["threads"])
    if "grad" in changed:
        torch.set_grad_enabled(to["grad"])
    if "autocast" in changed:
        torch.set_autocast_enabled("cpu", to["autocast"])


def same(one: Any, other: Any) -> bool:
    """Equality, of tensors too."""
    return torch.equal(one, other) if isinstance(one, Tensor) else bool(one == other)


class UserCode:
    """Calls into one file or module, with its own settings of the process.

    Args:
        folder: of the file. What it imports from there is its own: another file's module of the same name is
            another module.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._theirs: dict[str, Any] = {}
        self._ours: dict[str, Any] = {}
        self._folder = folder
        self._modules: dict[str, ModuleType] = {}

    @contextmanager
    def contained(self) -> Iterator[None]:
        """Inside it hold the settings that user code made before, outside it ours; not to be nested."""
        ours = self._ours = process_settings()
        entered = {**ours, **self._theirs}
        change_settings(ours, entered)
        try:
            with self._importing():
                yield
        finally:
            left = process_settings()
            self._theirs |= {name: left[name] for name in KEPT if not same(left[name], entered[name])}
            change_settings(left, ours)

    @contextmanager
    def _importing(self) -> Iterator[None]:
        """The folder of the file is where it may import from, now and when it is called."""
        if self._folder is None:
            yield
            return
        known = set(sys.modules)
        sys.path.insert(0, str(self._folder))
        sys.modules.update(self._modules)
        try:
            yield
        finally:
            with contextlib.suppress(ValueError):
                sys.path.remove(str(self._folder))
            new = {n: m for n, m in list(sys.modules.items()) if n not in known and self._owns(m)}
            self._modules |= new
            for name in self._modules:
                sys.modules.pop(name, None)

    def _owns(self, module: ModuleType) -> bool:
        place = getattr(module, "__file__", None)
        return place is not None and self._folder in Path(place).resolve().parents

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Our settings again, for what is called back from within contained()."""
        theirs = process_settings()
        change_settings(theirs, self._ours)
        try:
            yield
        finally:
            change_settings(process_settings(), theirs)

    def call(self, title: str, expected: str, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Call user code.

        Args:
            title: what the function is called in messages.
            expected: how the protocol calls it, such as "(x, weight, eps)".
            function: of the user.
            given, named: the arguments.

        Raises:
            ValueError: it does not take such arguments.
            Exception: whatever it raises.
        """
        signature = signature_of(function)
        if signature is not None:
            try:
                signature.bind(*given, **named)
            except TypeError as error:
                raise ValueError(
                    f"{title}{signature} cannot be called as {title}{expected}: {error}"
                ) from error
        with self.contained():
            return function(*given, **named)


def signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    """The parameters of a callable; None where compiled code does not tell.

    A torch.nn.Module is called with what its forward takes: its own __call__ takes anything.
    """
    try:
        return inspect.signature(function.forward if isinstance(function, torch.nn.Module) else function)
    except ValueError:
        return None


_imported: dict[tuple[str, int], tuple[ModuleType, UserCode]] = {}


def imported(place: str) -> tuple[ModuleType, UserCode]:
    """The module of a path that ends in .py, or of a dotted name; run once, unless it failed or was edited.

    Raises:
        ValueError: there is no such file or module.
        ImportError: the module itself raised; says what.
    """
    path = Path(place).resolve() if place.endswith(".py") else None
    if path is not None and not path.is_file():
        raise ValueError(f"there is no file {place!r} (looked at {path})")
    key = (str(path or place), path.stat().st_mtime_ns if path else 0)
    if key not in _imported:
        code = UserCode(path.parent if path else None)
        # A warning is no reason to fail, though the suites of this project turn their own into errors.
        with code.contained(), warnings.catch_warnings():
            warnings.simplefilter("default")
            _imported[key] = (_import(place, path), code)
    return _imported[key]


def _import(place: str, path: Path | None) -> ModuleType:
    try:
        return importlib.import_module(place) if path is None else _run(path)
    except ModuleNotFoundError as error:
        if path is None and error.name and f"{place}.".startswith(f"{error.name}."):
            raise ValueError(
                f"there is no module {place!r}; write path/to/file.py:build or package.module:build"
            ) from error
        raise
    except SystemExit as error:
        raise ImportError(
            f"{place} called sys.exit() when it was imported; what it does as a script belongs under "
            'if __name__ == "__main__":'
        ).with_traceback(error.__traceback__) from error
    except Exception as error:
        # Another type: a ValueError of the user's own is no typo in --impl.
        raise ImportError(
            f"{place} raised {type(error).__name__} when it was imported: {error}"
        ).with_traceback(error.__traceback__) from error


def _run(path: Path) -> ModuleType:
    """Execute a file as a module; its own folder is importable from it, as when it is run as a script."""
    name = f"_conformance_user_{path.stem}_{hash(path) & 0xFFFFFFFF:x}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
