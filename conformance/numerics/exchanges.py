"""Weights in each other's place: what the logits would be if tensors of one shape had been mixed up."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator

from torch import Tensor

from conformance.cases import ModelCase
from conformance.numerics import answers
from conformance.numerics.settings import ORACLE
from conformance.numerics.verdict import Verdict, budgets_of, compare, malformed, oracle_of
from conformance.weights import expected_shapes
from reference_impl import Llama, LlamaConfig

Taken = dict[str, str]  # tensor → the tensor whose values it holds


def judge_exchanges(logits: Tensor, case: ModelCase) -> Verdict:
    """Whether no mix-up of same-shaped tensors explains logits: all give others, by more than a budget.

    It isolates: an implementation that is wrong in another way is explained by none.

    Args:
        logits: [B, T, V], of case.token_ids().
        case: which model.

    Raises:
        ValueError: a mix-up could not be seen on this case.
    """
    wrong = malformed(logits, oracle_of(answers.logits, case.question), case.torch_dtype)
    if wrong is not None:
        return wrong
    budget = budgets_of(answers.logits, case.question)
    distance = {
        name: compare(logits, other, case.torch_dtype, budget).headroom or 0.0
        for name, other in _logits_of_mixups(case.twin).items()
    }
    nearest = min(distance, key=lambda name: distance[name])
    passed = distance[nearest] > 1
    return Verdict(
        passed=passed,
        measure="mix-ups",
        reason="" if passed else f"the logits are those of {nearest}",
        facts={"nearest mix-up": f"{distance[nearest]:.3g} budgets away, {nearest}"},
    )


@functools.lru_cache(maxsize=16)
def _logits_of_mixups(case: ModelCase) -> dict[str, Tensor]:
    """The oracle's logits under each mix-up, by its name."""
    weights = {name: w.to(ORACLE.dtype) for name, w in case.weights().items()}
    right, budget = oracle_of(answers.logits, case.question), budgets_of(answers.logits, case.question)
    found = {}
    for name, taken in mixups(case.config).items():
        mixed = {n: weights[taken.get(n, n)] for n in weights}
        found[name] = Llama(case.config, mixed, dtype=ORACLE.dtype)(case.token_ids())
        if compare(right, found[name], case.torch_dtype, budget).passed:
            raise ValueError(f"{case!r} has no power: {name} stays within the budget")
    return found


def mixups(config: LlamaConfig) -> dict[str, Taken]:
    """Ways to mix up tensors of one shape, by name: which tensor holds the values of which other.

    Two of one layer, or the same two in every layer; a tensor and its like in the next layer, or the whole
    two layers; embedding and unembedding. Exchanged, or the one taken for the other.
    """
    found: dict[str, Taken] = {}
    for one, other, pairs in _pairs(config):
        there, back = dict(pairs), {b: a for a, b in pairs}
        found[f"{one} and {other} exchanged"] = there | back
        found[f"{one} holding the values of {other}"] = there
        found[f"{other} holding the values of {one}"] = back
    return found


def _pairs(config: LlamaConfig) -> Iterator[tuple[str, str, list[tuple[str, str]]]]:
    """(one, other, tensors of one and of the other) of every two things that could be mixed up."""
    shapes = expected_shapes(config)
    layers = range(config.num_hidden_layers)
    first = "model.layers.0."
    kinds = [name.removeprefix(first) for name in shapes if name.startswith(first)]

    def named(layer: int) -> Callable[[str], str]:
        return lambda kind: f"model.layers.{layer}.{kind}"

    for a, b in itertools.combinations(kinds, 2):
        if shapes[first + a] == shapes[first + b]:
            for name in map(named, layers):
                yield name(a), name(b), [(name(a), name(b))]
            if len(layers) > 1:
                everywhere = [(named(i)(a), named(i)(b)) for i in layers]
                yield f"{a} of every layer", f"{b} of every layer", everywhere
    for i, j in itertools.pairwise(layers):
        likes = [(named(i)(kind), named(j)(kind)) for kind in kinds]
        for here, there in likes:
            yield here, there, [(here, there)]
        yield f"layer {i}", f"layer {j}", likes
    if not config.tie_word_embeddings:
        ends = ("model.embed_tokens.weight", "lm_head.weight")
        yield *ends, [ends]
