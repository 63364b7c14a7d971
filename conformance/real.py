"""REAL-1: a trained checkpoint on real text, judged layer by layer, with perplexity and greedy tokens."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from os import cpu_count, environ
from typing import Any

import torch
from torch import Tensor

from conformance.checkpoints import Checkpoint, NotInstalledError, load
from conformance.checkpoints.compare import (
    cast,
    greedy,
    kept,
    layer_outputs,
    oracle_greedy,
    oracle_outputs,
    parting,
    perplexity,
    token_ids,
)
from conformance.implementations.base import Model, Unsupported, not_offered
from conformance.implementations.reference import ReferenceModel
from conformance.inputs import DTYPES
from conformance.numerics.greedy import judge_chosen
from conformance.numerics.settings import CAST_THEN_WEIGHT, WEIGHT_THEN_CAST_FUSED
from conformance.numerics.verdict import Verdict, budgets, compare, exact, malformed, worst_of
from conformance.records import Record, Status
from conformance.subject import Subject
from conformance.tally import describe_exception, pytest
from conformance.weights import hidden_order, permute_jointly
from reference_impl import Llama, LlamaConfig

REQUIREMENT = "REAL-1"
CHECKPOINT_DTYPES = ("float32", "bfloat16")
GREEDY_TOKENS = 20
PROMPT_TOKENS = 32


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """What is right on a checkpoint in one dtype, and how far off it is right to be.

    Args:
        config, weights: canonical; the weights rounded to the dtype.
        tokens: [1, T] of the text.
        oracle: float64 output of every layer, and the logits.
        budgets: of each measure, by tap.
        greedy_ids, greedy_logits: the oracle's next tokens after PROMPT_TOKENS, and its logits there.
    """

    config: LlamaConfig
    weights: dict[str, Tensor]
    tokens: Tensor
    oracle: dict[str, Tensor]
    budgets: dict[str, dict[str, float]]
    greedy_ids: list[int]
    greedy_logits: Tensor


@contextmanager
def all_cores() -> Iterator[None]:
    """A large model may use every core, unless other processes run beside this one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if "PYTEST_XDIST_WORKER" in environ else cpu_count() or 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@functools.lru_cache(maxsize=1)
def checkpoint_of(name: str) -> Checkpoint:
    """The checkpoint, read once."""
    return load(name)


@functools.lru_cache(maxsize=len(CHECKPOINT_DTYPES))
def envelope(name: str, dtype: torch.dtype) -> Envelope:
    """Run the oracle and one pair of yardsticks: both conventions at once, in two reduction orders."""
    checkpoint = checkpoint_of(name)
    config, tokens = checkpoint.config, token_ids(checkpoint)
    weights = cast(checkpoint.weights, dtype)
    oracle = oracle_outputs(config, weights, tokens)
    plain = Llama(config, weights, ops=CAST_THEN_WEIGHT, dtype=dtype)
    order = hidden_order(config, 1)
    permuted = Llama(config, permute_jointly(config, weights, 1), ops=WEIGHT_THEN_CAST_FUSED, dtype=dtype)
    yardsticks = [layer_outputs(plain, tokens), layer_outputs(permuted, tokens)]
    for tap, value in yardsticks[1].items():
        if tap != "logits":  # the residual stream stands in the permuted order
            yardsticks[1][tap] = torch.empty_like(value).index_copy_(-1, order, value)
    del permuted
    prompt = tokens[:, :PROMPT_TOKENS]
    ids, logits = oracle_greedy(config, weights, prompt, ReferenceModel(plain), GREEDY_TOKENS)
    return Envelope(
        config=config,
        weights=weights,
        tokens=tokens,
        oracle=oracle,
        budgets={tap: budgets((y[tap] for y in yardsticks), want, dtype) for tap, want in oracle.items()},
        greedy_ids=ids,
        greedy_logits=logits,
    )


def outputs(model: Model, tokens: Tensor) -> dict[str, Tensor]:
    """The implementation's layer outputs where it shows them, and its logits."""
    seen: dict[str, Tensor] = {}

    def show(tap: str, value: Tensor) -> None:
        if kept(tap):
            seen[tap] = value

    try:
        model.watch(tokens, show)
    except Unsupported:
        return {"logits": model.logits(tokens)}
    return seen


def judge_greedy(ids: list[int], right: Envelope, dtype: torch.dtype) -> Verdict:
    """Greedy tokens must be the oracle's wherever it prefers its own by more than two budgets."""
    parted = parting(ids, right.greedy_ids, right.greedy_logits)
    if parted is None:
        return exact(True, "greedy tokens", "")
    step, _ = parted
    chosen, oracle = torch.tensor(ids[step : step + 1]), right.greedy_logits[step : step + 1]
    verdict = judge_chosen(chosen, oracle, right.budgets["logits"]["worst element"], dtype)
    return replace(verdict, coordinate=(step,))


def judge_checkpoint(subject: Subject, name: str, dtype: str) -> tuple[Record, dict[str, Any] | None]:
    """Judge an implementation on a trained checkpoint.

    Args:
        subject: who.
        name: built-in name, folder or GGUF file.
        dtype: name.

    Returns:
        The record, and what reports/README.md calls a checkpoint entry; None where nothing was computed.
    """
    record = Record(
        requirement=REQUIREMENT,
        implementation=subject.implementation.name,
        variant=name.rstrip("/").rpartition("/")[2],
        dtype=dtype,
        status=Status.PASS,
        examples=1,
        case=f"checkpoint {name}",
        repro=f"{pytest()} suites/test_checkpoint.py --impl {subject.implementation.name} "
        f"--checkpoint {name} --dtype {dtype}",
    )
    try:
        if "logits" not in subject.implementation.capabilities():
            raise not_offered("logits")  # noqa: TRY301 - before minutes of work
        with all_cores(), torch.no_grad():
            verdict, seen = _judge(subject, name, DTYPES[dtype])
    except NotInstalledError as absent:
        record.status, record.reason, record.repro = Status.SKIPPED, str(absent), ""
        return record, None
    except Unsupported as unsupported:
        record.status, record.reason, record.repro = Status.UNSUPPORTED, str(unsupported), ""
        return record, None
    except Exception as error:  # noqa: BLE001 - whatever a subject or a file raises is a result
        record.status, record.reason = Status.ERROR, describe_exception(error)
        return record, None
    record.status = Status.PASS if verdict.passed else Status.FAIL
    record.measure, record.reason, record.coordinate = verdict.measure, verdict.reason, verdict.coordinate
    record.error, record.budget, record.headroom = verdict.error, verdict.budget, verdict.headroom
    if verdict.passed:
        record.repro = ""
    named = {"checkpoint": record.variant, "implementation": record.implementation, "dtype": dtype}
    return record, {**named, **seen}


def _judge(subject: Subject, name: str, dtype: torch.dtype) -> tuple[Verdict, dict[str, Any]]:
    right = envelope(name, dtype)
    on_device = {n: subject.on_device(w) for n, w in right.weights.items()}
    model = subject.implementation.build(right.config, on_device)
    got = {tap: v.cpu() for tap, v in outputs(model, subject.on_device(right.tokens)).items()}
    verdicts = {tap: _compare(got[tap], right, tap, dtype) for tap in right.oracle if tap in got}
    decisive = [verdicts["logits"]]
    ids: list[int] = []
    try:
        ids = greedy(model, subject.on_device(right.tokens[:, :PROMPT_TOKENS]), GREEDY_TOKENS)
        decisive.append(judge_greedy(ids, right, dtype))
    except Unsupported:
        pass  # no cache of its own: the logits alone decide, and the page shows no greedy text
    tokenizer = checkpoint_of(name).tokenizer
    layers = [
        {
            "layer": right.config.num_hidden_layers if tap == "logits" else int(tap.split(".")[1]),
            "tap": tap,
            "error": v.error,
            "budget": v.budget,
            "headroom": v.headroom,
        }
        for tap, v in verdicts.items()
    ]
    return worst_of(*decisive), {
        "tokens": right.tokens.shape[1],
        "perplexity": perplexity(got["logits"], right.tokens) if tokenizer else None,
        "oracle_perplexity": perplexity(right.oracle["logits"], right.tokens) if tokenizer else None,
        "greedy": tokenizer.decode(ids) if tokenizer else "",
        "greedy_ids": ids,
        "greedy_agrees": ids == right.greedy_ids,
        "layers": layers,
    }


def _compare(actual: Tensor, right: Envelope, tap: str, dtype: torch.dtype) -> Verdict:
    want = right.oracle[tap]
    return malformed(actual, want, dtype) or compare(actual, want, dtype, right.budgets[tap])
