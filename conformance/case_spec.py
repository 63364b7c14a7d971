"""Reading a case back from its spec, as records print it and --case takes it."""

from __future__ import annotations

import ast
import math
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from conformance.cases import Case, Changes
from conformance.inputs import DTYPES


def parse_case(text: str) -> Case:
    """Read a spec back, as it stands in a record: "NormCase(dtype='float32', seed=0, n=8, …)".

    Raises:
        ValueError: no call of a known case with literal keyword arguments; a field it does not have, of
            another type or out of bounds; or fields that do not fit one another, as the case says.
    """
    advice = f"expected what a record prints, one of {', '.join(Case.kinds)} with keyword arguments"
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)) or call.args:
            raise ValueError("not a case")  # noqa: TRY301 - one message for all malformed text
        if call.func.id not in Case.kinds:
            raise ValueError(f"there is no {call.func.id}")  # noqa: TRY301 - as above
        kind = Case.kinds[call.func.id]
        values = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
        _require_fields(kind, values)
        return kind(**values)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError(f"cannot read the case {text[:LONG]!r} ({error}); {advice}") from error


MAY_BE_ZERO = frozenset({"seed", "start", "shift", "past", "layer", "filler", "lengths", "sequences"})
POSITIVE = frozenset({"eps", "theta", "multiplier"})
MOST = 2**31 - 1  # of a whole number: a generator takes no seeds that are much larger
LONG = 1000  # characters of a spec in a message


def _require_fields(kind: type[Case], values: dict[str, Any]) -> None:
    hints = get_type_hints(kind)
    types = {field.name: hints[field.name] for field in fields(kind)}
    for name, value in values.items():
        if name not in types:
            raise ValueError(f"{kind.__name__} has no field {name!r}, only {', '.join(types)}")
        wanted = _wanted(name, types[name], value)
        if wanted:
            raise ValueError(f"{name} is {value!r}, {wanted}")
        try:
            hash(value)
        except TypeError as error:
            raise ValueError(f"{name} is {value!r}: {error}, tuples are needed") from error


def _wanted(name: str, type_: Any, value: Any) -> str:
    """What is needed in place of the value; "" where it will do."""
    least = 0 if name in MAY_BE_ZERO else 1
    whole = f"of {least} … {MOST}"
    choices = tuple(DTYPES) if name == "dtype" else get_args(type_) if get_origin(type_) is Literal else ()
    if choices:
        fits, wanted = value in choices, f"there are {', '.join(choices)}"
    elif type_ is int:
        fits, wanted = _whole(value, least), f"a whole number {whole} is needed"
    elif type_ is float:
        fits, wanted = _number(value), "a finite number is needed"
        if fits and name in POSITIVE:
            fits, wanted = value > 0, "a number above 0 is needed"
    elif type_ == tuple[int, ...]:
        fits = isinstance(value, tuple) and all(_whole(n, least) for n in value)
        wanted = f"a tuple of whole numbers {whole} is needed"
    elif type_ == Changes:
        fits = isinstance(value, tuple) and all(map(_change, value))
        wanted = "a tuple of (field, value) is needed"
    elif type_ in {bool, str}:
        fits = type(value) is type_
        wanted = "True or False is needed" if type_ is bool else "a text is needed"
    else:  # events, which the case itself looks through
        fits, wanted = isinstance(value, tuple), "a tuple is needed"
    return "" if fits else wanted


def _whole(value: Any, least: int) -> bool:
    return type(value) is int and least <= value <= MOST


def _number(value: Any) -> bool:
    return type(value) in {int, float} and math.isfinite(value)


def _change(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str)
