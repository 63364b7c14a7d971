"""Reading a case back from its spec, as records print it and --case takes it."""

from __future__ import annotations

import ast
from dataclasses import fields
from typing import get_args

from conformance.cases import PLACES, Case
from conformance.inputs import DTYPES, Pattern
from conformance.weights import REGIMES


def parse_case(text: str) -> Case:
    """Read a spec back, as it stands in a record: "NormCase(dtype='float32', seed=0, n=8, …)".

    Raises:
        ValueError: no call of a known case with literal keyword arguments, or a field it does not have.
    """
    advice = f"expected what a record prints, one of {', '.join(Case.kinds)} with keyword arguments"
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)) or call.args:
            raise ValueError("not a case")  # noqa: TRY301 - one message for all malformed text
        values = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
        case = Case.kinds[call.func.id](**values)
        _require_buildable(case)
        return case  # noqa: TRY300 - as above
    except (SyntaxError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"cannot read the case {text!r} ({error}); {advice}") from error


CHOICES: dict[str, tuple[str, ...]] = {
    "dtype": tuple(DTYPES),
    "regime": REGIMES,
    "places": tuple(PLACES),
    **dict.fromkeys(("pattern", "up_pattern", "v_pattern"), get_args(Pattern)),
}
MAY_BE_ZERO = frozenset({"seed", "start", "shift", "past", "layer"})


def _require_buildable(case: Case) -> None:
    for field in fields(case):
        value, known = getattr(case, field.name), CHOICES.get(field.name)
        least = 0 if field.name in MAY_BE_ZERO else 1
        if known and value not in known:
            raise ValueError(f"{field.name} is {value!r}, there are {', '.join(known)}")
        if field.type == "int" and (type(value) is not int or value < least):
            raise ValueError(f"{field.name} is {value!r}, a whole number of at least {least} is needed")
        if field.type == "float" and type(value) not in {int, float}:
            raise ValueError(f"{field.name} is {value!r}, a number is needed")
        if field.name == "but" and not (
            isinstance(value, tuple)
            and all(isinstance(c, tuple) and len(c) == 2 and isinstance(c[0], str) for c in value)
        ):
            raise ValueError(f"but is {value!r}, a tuple of (field, value) is needed")
        if field.name == "chunks" and not (
            isinstance(value, tuple) and all(type(c) is int and c > 0 for c in value)
        ):
            raise ValueError(f"chunks is {value!r}, a tuple of whole numbers of at least 1 is needed")
