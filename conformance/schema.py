"""The shapes of results.json: what is read back is looked through, so that a spoilt file is told in words."""

from __future__ import annotations

import math
from types import EllipsisType, NoneType
from typing import Any

WORDS = {
    bool: "true or false",
    dict: "an object",
    float: "a number",
    int: "a number",
    list: "a list",
    NoneType: "null",
    str: "a text",
}
NUMBER, MAYBE = (int, float), (int, float, NoneType)
Shape = dict[str | EllipsisType, Any]
# What is read back: see require(); what is written has more.
STEP: Shape = {
    **dict.fromkeys(("tap", "component", "measure", "reason"), str),
    **dict.fromkeys(("added", "allowed", "headroom", "inherited"), MAYBE),
    "coordinate": [int],
    "over": bool,
}
CHECK: dict[str, Any] = {
    **dict.fromkeys(("requirement", "implementation", "variant", "dtype", "status", "measure"), str),
    **dict.fromkeys(("error", "budget", "headroom"), MAYBE),
    "coordinate": [int],
    "examples": int,
    **dict.fromkeys(("case", "reason", "repro"), str),
    "facts": {...: str},
    "suspect": str,
    "trace": [STEP],
    "script": str,
}
RUN: Shape = {
    **dict.fromkeys(("started", "command", "profile", "device", "git"), str),
    "seconds": NUMBER,
    "interrupted": bool,
    "versions": {...: str},
    "implementations": [str],
    "variants": [str],
    "requirements": {...: str},
}
CHECKPOINT: Shape = {
    **dict.fromkeys(("checkpoint", "implementation", "dtype", "greedy"), str),
    "tokens": int,
    **dict.fromkeys(("perplexity", "oracle_perplexity"), MAYBE),
    "greedy_agrees": bool,
    "layers": [{"layer": int, "tap": str, "error": MAYBE, "budget": NUMBER, "headroom": MAYBE}],
}
PLACE: Shape = {"tap": str, "component": str, "right": bool}
FAULT: Shape = {
    **dict.fromkeys(
        ("fault", "component", "requirement", "source", "equivalent", "equivalent_on", "fate"), str
    ),
    **dict.fromkeys(("needs", "check", "measure", "case", "reason", "sits_in"), str),
    "headroom": MAYBE,
    "located": (dict, NoneType),
    "cells": {...: str},
}
POWER: Shape = {
    **dict.fromkeys(("sentence", "plain", "command", "started", "profile"), str),
    **dict.fromkeys(("full", "interrupted"), bool),
    "seconds": NUMBER,
    "problems": [str],
    "requirements": [str],
    "faults": [FAULT],
}


def well_formed(value: Any) -> Any:
    r"""The value with lone surrogates written out, such as "\udc80": no UTF-8 and no strict JSON holds one.

    Names of files and messages may have them; where there are none, the very value is given back.
    """
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {well_formed(name): well_formed(item) for name, item in value.items()}
    if isinstance(value, list):
        return [well_formed(item) for item in value]
    return value


def refused(name: str) -> None:
    """Refuse what Python's JSON takes and others do not.

    Raises:
        ValueError: always.
    """
    raise ValueError(f"{name} is no JSON")


def require(value: Any, shape: Any, where: str) -> None:
    """Require JSON of a shape.

    Args:
        value: as json.loads gives it.
        shape: types, as isinstance takes them; [shape] for a list of such; {key: shape} for an object that
            has these keys, and maybe others; {...: shape} for one with any keys.
        where: what the value is called in the error.

    Raises:
        ValueError: it is something else; says where, what it is and what was expected.
    """
    outer = type(shape) if isinstance(shape, dict | list) else shape
    if not isinstance(value, outer):
        raise ValueError(f"{where} is {repr(value)[:80]}, expected {named(outer)}")  # noqa: TRY004 - as all bad input
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where} is {value}, expected a finite number")
    if isinstance(shape, list):
        for number, item in enumerate(value):
            require(item, shape[0], f"{where}[{number}]")
    elif isinstance(shape, dict):
        for name in value if ... in shape else shape:
            if name not in value:
                raise ValueError(f"{where} has no {name!r}")
            require(value[name], shape.get(name, shape.get(...)), f"{where}.{name}")


def named(types: Any) -> str:
    """Types in words of JSON."""
    several = types if isinstance(types, tuple) else (types,)
    return " or ".join(dict.fromkeys(WORDS[one] for one in several))
