"""Frequency rules that are right for the published configs, or in one of two places, and wrong otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from conformance.checkpoints.config_json import rope_from_hf
from conformance.faults.catalogue import Fault, model_fault, op_fault, ops_fault
from conformance.faults.rope import of_rope, plain
from conformance.implementations.reference import ReferenceModel
from reference_impl import KVCache, Llama, Rope
from reference_impl.rope import inv_freq, tables

Pair = tuple[Tensor, Tensor]


def published(rope_type: str, **fields: Any) -> object:
    """A field of a rule read from the papers instead of the config: right for every released model."""
    return of_rope(lambda rope: replace(rope, **fields) if rope.rope_type == rope_type else rope)


def other_rule(llama: Llama) -> Llama:
    """The same model without its frequency scaling."""
    config = replace(llama.config, rope=plain(llama.config.rope))
    return Llama(config, llama.weights, ops=llama.ops, dtype=llama.dtype)


class PlainPrefill(ReferenceModel):
    """The table of prefill built without scaling, that of decode with it."""

    def step(self, tokens_BT: Tensor, cache: KVCache) -> Tensor:
        """See Model.step."""
        return (other_rule(self.llama) if tokens_BT.shape[1] > 1 else self.llama)(tokens_BT, cache=cache)


class PlainDecode(ReferenceModel):
    """The table of decode built without scaling, that of prefill with it."""

    def step(self, tokens_BT: Tensor, cache: KVCache) -> Tensor:
        """See Model.step."""
        return (other_rule(self.llama) if tokens_BT.shape[1] == 1 else self.llama)(tokens_BT, cache=cache)


def read(rope: Rope, config_json: dict[str, Any], positions: Tensor) -> Pair:
    """The tables of a rule, for a reader that found it."""
    return tables(inv_freq(rope, config_json["head_dim"]), positions, torch.float32)


def type_unknown(config_json: dict[str, Any], positions: Tensor) -> Pair:
    """A reader that knows rope_type alone: under the older word "type" there is no scaling."""
    rule = config_json.get("rope_scaling") or {}
    rope = rope_from_hf(config_json)
    return read(plain(rope) if "type" in rule else rope, config_json, positions)


def theta_beside(config_json: dict[str, Any], positions: Tensor) -> Pair:
    """A reader that looks for rope_theta beside the rule, where transformers 5 no longer writes it."""
    rope = replace(rope_from_hf(config_json), rope_theta=config_json.get("rope_theta", 10000.0))
    return read(rope, config_json, positions)


def taken_apart(config_json: dict[str, Any], positions: Tensor) -> Pair:
    """A reader that takes what it reads out of the caller's dict."""
    found = read(rope_from_hf(config_json), config_json, positions)
    (config_json.get("rope_parameters") or config_json.get("rope_scaling") or config_json).popitem()
    return found


FAULTS: list[Fault] = [
    ops_fault("scale.low-from-the-paper", "SCALE-8", inv_freq=published("llama3", low_freq_factor=1.0)),
    ops_fault("scale.high-from-the-paper", "SCALE-8", inv_freq=published("llama3", high_freq_factor=4.0)),
    ops_fault(
        "scale.theta-from-the-paper",
        "SCALE-8",
        "TransformerLensOrg/TransformerLens#910",
        inv_freq=published("llama3", rope_theta=5e5),
    ),
    ops_fault("scale.linear-factor-4", "SCALE-8", inv_freq=published("linear", factor=4.0)),
    model_fault("scale.plain-prefill", "SCALE-9", "Xilinx/mlir-air#1948", PlainPrefill),
    model_fault("scale.plain-decode", "SCALE-9", "Xilinx/mlir-air#1948", PlainDecode),
    op_fault("scale.type-unknown", "SCALE-10", "ggml-org/llama.cpp#13349", json_rope_tables=type_unknown),
    op_fault("scale.theta-beside", "SCALE-10", "vllm-project/vllm#28542", json_rope_tables=theta_beside),
    op_fault("scale.config-taken-apart", "SCALE-11", "classical", json_rope_tables=taken_apart),
]
