"""A history as a short Python script by the public API: to be run, cut down, and sent to whom it concerns."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from conformance.cases.plan import FILLER, POISON, Event, Piece, Plan

if TYPE_CHECKING:
    from conformance.cases.history import HistoryCase

FAULT = "fault:"
HEAD = '''\
"""{spec} on {implementation}"""

from contextlib import suppress

import torch

from conformance.implementations.base import Unsupported
from {home} import {get}
from conformance.weights import make_weights
from reference_impl import Llama, LlamaConfig, Rope

torch.set_grad_enabled(False)
torch.set_num_threads(1)


def build(config, seed):
    """A model, and the right one in float64."""
    weights = make_weights(config, seed, "{regime}", torch.{dtype})
    return {get}("{name}").build(config, weights), Llama(config, weights, dtype=torch.float64)


def kind(model, at):
    """One of its kinds of cache."""
    return model.cache_kinds()[at % len(model.cache_kinds())]


def longer(rows, tokens):
    """Rows with more tokens behind."""
    return [row + more for row, more in zip(rows, tokens)]


def compare(event, oracle, rows, logits):
    """The logits of the last tokens of each row with those of one pass over the row."""
    for at, (row, got) in enumerate(zip(rows, logits)):
        if len(got):
            want = oracle(torch.tensor([row]))[0, -len(got) :]
            off = (got.double() - want).pow(2).mean().sqrt() / want.pow(2).mean().sqrt()
            print(f"{{event}}, row {{at}}: off by {{off:.2g}} of their size")

'''


def script(case: HistoryCase, implementation: str) -> str:
    """The script of a case.

    Args:
        case: what is done.
        implementation: its name, as --impl takes it; a fault's too.
    """
    fault = implementation.startswith(FAULT)
    head = HEAD.format(
        spec=case.spec,
        implementation=implementation,
        home="conformance.faults" if fault else "conformance.implementations.registry",
        get="implementation" if fault else "get",
        name=implementation.removeprefix(FAULT),
        regime=case.regime,
        dtype=case.dtype,
    )
    used, plan, lines = {model_of(event) for event in case.events}, Plan(), list[str]()
    for which, model in enumerate(case.models):
        if which in used:
            lines.append(f"model_{which}, oracle_{which} = build({constructor(model.config)}, {model.seed})")
    for event in case.events:
        sketch = plan.caches.get(event[1])
        left = sketch.left if sketch is not None else 0
        lines += ["", f"# {event!r}", *written(case, event, plan.take(event), left)]
    return "\n".join([head, *lines]) + "\n"


def model_of(event: Event) -> int:
    """Which model an event is about."""
    return int(event[1]) if event[0] == "pass" else int(event[1] > 1)


def constructor(value: Any) -> str:
    """A dataclass as it is made, without what is as by default."""
    if not is_dataclass(value):
        return repr(value)
    given = (
        f"{f.name}={constructor(getattr(value, f.name))}"
        for f in fields(value)
        if f.default is MISSING or getattr(value, f.name) != f.default
    )
    return f"{type(value).__name__}({', '.join(given)})"


def written(case: HistoryCase, event: Event, pieces: list[Piece], left: int) -> list[str]:
    """The lines of an event.

    Args:
        case: whose.
        event: the next one.
        pieces: the tokens that it brings.
        left: how many more fit into its cache.
    """
    which, at = model_of(event), event[1]
    model, cache, rows = f"model_{which}", f"cache_{at}", f"rows_{at}"
    tokens = [list(case.tokens(piece)) for piece in pieces]
    compare = f"compare({event!r}, oracle_{which}, {{}}, {{}})"
    match event:
        case ("new", _, batch, capacity, kind):
            lines = [
                f"{cache} = {model}.new_cache({batch}, {capacity}, kind({model}, {kind}))",
                f"{rows} = [[]] * {batch}",
            ]
        case ("poison", _):
            lines = [
                f"for at, tensor in enumerate({model}.cache_tensors({cache})):",
                "    generator = torch.Generator().manual_seed(at)",
                "    signs = torch.randint(0, 2, tensor.shape, generator=generator) * 2 - 1",
                f"    tensor.copy_({POISON[case.dtype]} * signs)",
            ]
        case ("step", _, n):
            step = [
                f"logits = {model}.step(torch.tensor({tokens}, dtype=torch.int64), {cache})",
                f"{rows} = longer({rows}, {tokens})",
                compare.format(rows, "logits"),
            ]
            lines = step if 0 < n <= left else attempted(step)
        case ("prefill", _, lengths):
            filler = list(case.tokens((FILLER, 0, max(lengths))))
            padded = [row + filler[len(row) :] for row in tokens]
            lines = offered(
                f"logits = {model}.prefill(torch.tensor({padded}), {cache}, torch.tensor({list(lengths)}))",
                f"{rows} = {tokens}",
                compare.format(rows, f"[row[:n] for row, n in zip(logits, {list(lengths)})]"),
            )
        case ("crop", _, length):
            lines = offered(
                f"{model}.crop({cache}, {length})", f"{rows} = [row[:{length}] for row in {rows}]"
            )
        case ("reorder", _, order):
            lines = offered(
                f"{model}.reorder({cache}, torch.tensor({list(order)}))",
                f"{rows} = [{rows}[row] for row in {list(order)}]",
            )
        case ("reset", _):
            lines = offered(f"{model}.reset({cache})", f"{rows} = [[]] * len({rows})")
        case _:  # "pass"
            lines = [compare.format(tokens, f"{model}.logits(torch.tensor({tokens}))")]
    return lines


def attempted(lines: list[str]) -> list[str]:
    """Lines that may raise: nothing has been done then."""
    inside = [f"    {line}" for line in lines]
    return ["try:", *inside, "except Exception as error:", '    print("refused:", error)']


def offered(*lines: str) -> list[str]:
    """Lines that are left out where an implementation does not offer what they ask for."""
    return ["with suppress(Unsupported):", *(f"    {line}" for line in lines)]
