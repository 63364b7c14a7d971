"""Tracing a trained checkpoint: the steps of a large model, with no more than a few layers in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from conformance.checkpoints.compare import cast, token_ids
from conformance.inputs import DTYPES
from conformance.numerics.arrows import Way
from conformance.numerics.settings import yardsticks
from conformance.real import all_cores, checkpoint_of
from conformance.records import Record, Status
from conformance.subject import Subject
from conformance.suspects import explained
from conformance.tracing import Trace, follow
from reference_impl import Llama


class CastLayers(Sequence[dict[str, Tensor]]):
    """Layers of a checkpoint, each cast when it is asked for; one is kept.

    Args:
        layers: in their own dtype.
        dtype: to cast to.
    """

    def __init__(self, layers: Sequence[dict[str, Tensor]], dtype: torch.dtype) -> None:
        self._layers, self._dtype = layers, dtype
        self._last: tuple[int, dict[str, Tensor]] = (-1, {})

    def __len__(self) -> int:
        return len(self._layers)

    def __getitem__(self, index: Any) -> Any:
        if self._last[0] != index:
            self._last = (index, cast(self._layers[index], self._dtype))
        return self._last[1]


def trace_checkpoint(subject: Subject, name: str, dtype: str, tokens: int = 64) -> Trace:
    """Trace a checkpoint on the first tokens of the text, with no more than a few layers in memory.

    Args:
        subject: who.
        name: built-in name, folder or GGUF file.
        dtype: name.
        tokens: of the text.

    Raises:
        Unsupported: the implementation shows no taps.
    """
    checkpoint, wide = checkpoint_of(name), torch.float64
    config, weights = checkpoint.config, cast(checkpoint.weights, DTYPES[dtype])
    plain = Llama(config, weights, dtype=DTYPES[dtype])
    outer = {n: w for n, w in weights.items() if not n.startswith("model.layers.")}
    oracle = Llama(config, outer, dtype=wide)
    oracle.layers = CastLayers(plain.layers, wide)  # type: ignore[assignment]
    accepted = [
        Way(model=Llama(config, weights, ops=setting.ops, dtype=setting.dtype), order=setting.order)
        for setting in yardsticks(DTYPES[dtype])
    ]
    ids = token_ids(checkpoint, tokens)
    with all_cores(), torch.no_grad():
        model = subject.implementation.build(config, {n: subject.on_device(w) for n, w in weights.items()})
        return follow(
            lambda given, show: model.watch(subject.on_device(given), show),
            config,
            ids,
            DTYPES[dtype],
            Way(model=oracle),
            accepted,
        )


def explain_checkpoint(record: Record, subject: Subject, name: str) -> Record:
    """The record of a checkpoint; of a failure with its suspect, and the steps around it.

    Args:
        record: of conformance.judge_checkpoint.
        subject: who.
        name: of the checkpoint.
    """
    if record.status is not Status.FAIL:
        return record
    return explained(record, lambda: trace_checkpoint(subject, name, record.dtype))
