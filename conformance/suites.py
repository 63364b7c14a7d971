"""The suites as plain modules: which tests prove a requirement, found without a run of pytest."""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

SUITES = Path(__file__).resolve().parent.parent / "suites"


@functools.cache
def proofs() -> list[Any]:
    """The test functions of suites/test_*.py that prove a requirement, by file and in the order of the file.

    Each has the attribute `requirement`, and `check` where it was made by @check.

    Raises:
        ValueError: there are no suites beside the package.
    """
    paths = sorted(SUITES.glob("test_*.py"))
    if not paths:
        raise ValueError(f"no suites in {SUITES}: they come with a clone of the repository, not with a wheel")
    return [
        value
        for path in paths
        for name, value in vars(imported(path)).items()
        if name.startswith("test_") and hasattr(value, "requirement")
    ]


def imported(path: Path) -> ModuleType:
    """The module of a suite's file; its name is none that pytest gives."""
    name = f"_suite_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def file_of(proof: Any) -> Path:
    """The file of the suite in which a test stands."""
    return Path(str(sys.modules[proof.__module__].__file__))
