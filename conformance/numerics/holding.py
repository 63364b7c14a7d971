"""What a model holds: bytes by storage, values that were rounded on the way in, tensors that are a table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor, UntypedStorage

from conformance.implementations.base import Held
from conformance.numerics.verdict import Verdict
from reference_impl import LlamaConfig, Rope
from reference_impl.rope import inv_freq, tables


def storages(tensors: Iterable[Tensor]) -> list[UntypedStorage]:
    """The distinct storages behind tensors: views and second names count once."""
    found = {(t.device, t.untyped_storage().data_ptr()): t.untyped_storage() for t in tensors if t.numel()}
    return list(found.values())


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes really allocated for tensors, each storage counted once and whole."""
    return sum(storage.nbytes() for storage in storages(tensors))


def distinct_elements(tensors: Iterable[Tensor]) -> int:
    """How many elements tensors have, each place in memory counted once: of views that overlap, the union."""
    marks: dict[tuple[torch.device, int], Tensor] = {}
    for t in tensors:
        storage = t.untyped_storage()
        key = (t.device, storage.data_ptr())
        mark = marks.setdefault(key, torch.zeros(storage.nbytes() // t.itemsize, dtype=torch.bool))
        mark.as_strided(t.shape, t.stride(), t.storage_offset()).fill_(True)
    return sum(int(mark.sum()) for mark in marks.values())


def judge_bytes(what: str, tensors: Iterable[Tensor], expected: int, *, at_most: bool = False) -> Verdict:
    """Whether the storages of tensors take the bytes that a config implies.

    Args:
        what: name of the tensors, in the plural.
        tensors: held.
        expected: bytes, of conformance.memory_of.
        at_most: whether less is right too.
    """
    tensors = list(tensors)
    got = storage_bytes(tensors)
    views = sum(t.numel() * t.itemsize < t.untyped_storage().nbytes() for t in tensors)
    ratio = got / max(expected, 1)
    words = "at most " if at_most else ""
    passed = got <= expected if at_most else got == expected
    reason = f"{what} take {got:,} bytes, expected {words}{expected:,}: {ratio:.4g} times as many"
    if views and not passed:
        reason += f"; {views} of {len(tensors)} are views that keep a larger storage alive"
    return Verdict(
        passed=passed,
        measure="bytes",
        error=float(got if at_most else abs(got - expected)),
        budget=float(expected if at_most else 0),
        reason="" if passed else reason,
        facts={f"bytes of {what}": f"{got:,}"},
    )


def judge_same(after: Iterable[Held], before: Iterable[Held], config: LlamaConfig, when: str) -> Verdict:
    """Whether a model holds what it held, to the bit; rounded to a dtype, but for frequencies and angles.

    Args:
        after, before: all that it holds.
        config: of the model.
        when: since when, in words.
    """
    now = {held.name: held.tensor for held in after}
    found = []
    for held in before:
        name, old, new = held.name, held.tensor, now.get(held.name)
        if new is None:
            found.append(f"{name} is gone {when}")
        elif held.kind == "buffer" and new.dtype != old.dtype and resembles_rotary(old, config) in KEPT:
            found.append(
                f"{name} is {new.dtype} {when}, and holds {resembles_rotary(old, config)}: {old.dtype}"
            )
        elif not torch.equal(new, old.to(new.dtype)):
            off = float((new.double() - old.double()).abs().max()) if new.shape == old.shape else math.inf
            found.append(f"{name} has changed {when}, by up to {off:.3g}")
    return Verdict(passed=not found, measure="the same bits", reason="; ".join(found[:5]))


KEPT = ("frequencies", "angles")  # what is rounded for a dtype comes after them
ROUNDINGS = (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


def rounded_through(held: Iterable[Tensor], weights: Mapping[str, Tensor]) -> torch.dtype | None:
    """The narrower dtype through which weights came in, if their values show one.

    Values are compared as sets, so that neither names nor layouts matter: fused and transposed tensors hold
    the same numbers. Weights that were transformed on the way in are none of these sets.

    Args:
        held: parameters of the built model.
        weights: what it was built from.
    """
    have = torch.cat([t.detach().flatten().to(torch.float64) for t in held])
    want = torch.cat([w.flatten().to(torch.float64) for w in weights.values()]).to(have.device)
    if bool(torch.isin(want, have).all()):
        return None
    for narrow in ROUNDINGS:
        if bool(torch.isin(want.to(narrow).to(torch.float64), have).all()):
            return narrow
    return None


ROWS, FEWEST = 32, 8  # of a table: so many are compared, and so few may there be
# Relative difference below which a tensor is taken for a table. On the small configs tables in bfloat16 stand
# at 0.004 at most, weights at 0.9 at least.
ALIKE = 0.1


def resembles_rotary(tensor: Tensor, config: LlamaConfig) -> str:
    """What of rotation a tensor holds: "frequencies", "cos", "sin", …; "" if nothing.

    Rows are compared by how they depart from the first one: the cos of slow pairs is nearly one in all of
    them, as is the weight of a norm that was never trained.

    Args:
        tensor: [...], any floating or complex dtype.
        config: whose frequencies; those before scaling count too.
    """
    real = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    flat = real.flatten().to("cpu", torch.float64)
    for name, form in rotary_forms(config):
        width = form.shape[1]
        rows = min(flat.numel() // width, len(form))
        if flat.numel() != form.numel() if name == "frequencies" else rows < FEWEST:
            continue
        got, want = flat[: rows * width].view(rows, width), form[:rows]
        course = want - want[0]
        if float((got - got[0] - course).norm()) < ALIKE * float(course.norm()):
            return name
    return ""


def rotary_forms(config: LlamaConfig) -> Iterator[tuple[str, Tensor]]:
    """Every form in which frequencies [.., 1] and the first rows of tables [ROWS, ..] are kept; float64."""
    plain = Rope(rope_theta=config.rope.rope_theta, partial_rotary_factor=config.rope.partial_rotary_factor)
    for rule in dict.fromkeys((config.rope, plain)):
        own = replace(config, rope=rule)
        frequencies = inv_freq(own.rope, own.head_dim).to(torch.float64)
        positions = torch.arange(min(ROWS, own.max_position_embeddings))
        cos, sin = tables(frequencies, positions, torch.float64)
        for widen in (lambda t: t, lambda t: torch.cat((t, t), -1), lambda t: t.repeat_interleave(2, -1)):
            yield "frequencies", widen(frequencies)[:, None]
            yield "angles", widen(positions[:, None] * frequencies)
            yield "cos", widen(cos)
            yield "sin", widen(sin)
        yield "cos and sin", torch.stack((cos, sin), -1).flatten(1)  # of pairs, and complex numbers
        yield "cos and sin", torch.cat((cos, sin), -1)
