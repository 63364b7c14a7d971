"""Options to a run: every name is looked up, and a wrong one is answered with those that exist."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from conformance import builtin_variants as _builtin_variants  # noqa: F401 - registers them
from conformance.case_spec import parse_case
from conformance.checkpoints import NotInstalledError, resolve
from conformance.checks import PROFILE_DRAWS, Selection
from conformance.deviations import read_deviations
from conformance.implementations import registry
from conformance.inputs import DTYPES
from conformance.session import Run, find
from conformance.spec import requirement
from conformance.variants import variants

FILTERS = ("--variant", "--requirement", "--dtype", "--case", "-k", "-m", "--deselect", "--lf", "--sw")


def make_run(option: Callable[[str], Any]) -> Run:
    """The run that command-line options describe.

    Args:
        option: looks an option up, as pytest's config.getoption.

    Raises:
        ValueError: something does not exist; the message lists what does.
    """
    for id_ in option("--requirement"):
        requirement(id_)
    draft = option("--write-deviations")
    if draft and not Path(draft).resolve().parent.is_dir():
        raise ValueError(f"--write-deviations {draft}: its folder does not exist; make it first")
    deviations = option("--deviations")
    return Run(
        implementations=implementations(option("--impl")),
        selection=selection(option),
        deviations=read_deviations(Path(deviations) if deviations else None),
        checkpoint=checkpoint(option("--checkpoint")),
        filtered=any(given(option, f) for f in FILTERS) or any("::" in a for a in option("file_or_dir")),
        report=writable(Path(option("--report"))),  # last: a typo leaves no folder behind
    )


def given(option: Callable[[str], Any], name: str) -> bool:
    """Whether an option was given; those of a plugin that is switched off do not exist."""
    try:
        return bool(option(name))
    except ValueError:
        return False


def implementations(names: Sequence[str]) -> list[str]:
    """Names of single implementations; a place that does not exist is found out now, not in every test.

    Raises:
        ValueError: unknown name, file, module, attribute or fault.
    """
    singles = registry.expand(list(names)) if names else registry.default_names()
    for name in singles:
        if name not in registry.BUILTIN:
            try:
                find(name)
            except ValueError:
                raise
            except Exception:  # noqa: BLE001, S112 - the code itself raises: that is a result of every check
                continue
    return singles


def writable(folder: Path) -> Path:
    """The folder, made now: at the end of a run it would be too late to find that it cannot be.

    Raises:
        ValueError: it cannot be made, or nothing can be written into it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--report {folder} cannot be made: {error.strerror}; name a folder") from error
    if not os.access(folder, os.W_OK):
        raise ValueError(f"--report {folder} cannot be written into; name another folder")
    return folder


def checkpoint(name: str) -> str:
    """The name of a checkpoint that can be looked for; one whose package is absent is skipped aloud later.

    Raises:
        ValueError: no built-in name, folder or GGUF file.
    """
    if name:
        with contextlib.suppress(NotInstalledError):
            resolve(name)
    return name


def selection(option: Callable[[str], Any]) -> Selection:
    """What is judged.

    Raises:
        ValueError: unknown variant, dtype, profile or device, or a case that cannot be read.
    """
    profile, dtypes = option("--profile"), tuple(option("--dtype")) or tuple(DTYPES)
    if profile not in PROFILE_DRAWS:
        raise ValueError(f"unknown profile {profile!r}; there are {', '.join(PROFILE_DRAWS)}")
    for dtype in dtypes:
        if dtype not in DTYPES:
            raise ValueError(f"unknown dtype {dtype!r}; there are {', '.join(DTYPES)}")
    device = option("--device")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"cannot use device {device!r}: {error}") from error
    case = parse_case(option("--case")) if option("--case") else None
    if case is not None:
        dtypes = (case.dtype,)
        getattr(case, "config", None)  # an unknown variant or shape is answered now
    return Selection(
        variants=tuple(variants(option("--variant"))),
        dtypes=dtypes,
        profile=profile,
        seed=seed(option("--seed"), profile),
        device=device,
        case=case,
    )


def seed(given: int | None, profile: str) -> int:
    """The seed of the draws: as given, else 0, but for thorough runs a new one each time."""
    if given is not None:
        return given
    return torch.seed() % 2**31 if profile == "thorough" else 0
