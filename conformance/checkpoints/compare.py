"""What is compared on a trained checkpoint: layer outputs and logits on real text, perplexity, greedy tokens.

The judgement itself is conformance.numerics'. Everything runs without gradients; the float64 oracle casts a
layer when its turn comes, so that a checkpoint needs its own size in memory, not three times that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from conformance.checkpoints import Checkpoint
from reference_impl import Llama, LlamaConfig, Ops
from reference_impl.block import Step, Weights, block

TEXT = Path(__file__).with_name("text.txt")
TEXT_TOKENS = 300
LAYERS = "model.layers."


def kept(tap: str) -> bool:
    """Whether a tap is compared: the residual stream after each layer, and the logits."""
    return tap == "logits" or tap.endswith(".mlp_residual")


def token_ids(checkpoint: Checkpoint, count: int = TEXT_TOKENS) -> Tensor:
    """The first tokens of the text that ships with the package; [1, T], T ≤ count.

    Where the checkpoint has no tokenizer (its notes say why), count seeded random ids.
    """
    vocabulary = checkpoint.config.vocab_size
    if checkpoint.tokenizer is None:
        generator = torch.Generator().manual_seed(0)
        return torch.randint(vocabulary, (1, count), generator=generator)
    ids = checkpoint.tokenizer.encode(TEXT.read_text(encoding="utf-8"))[:count]
    if max(ids) >= vocabulary:
        raise ValueError(
            f"{checkpoint.source}: its tokenizer gives id {max(ids)}, its vocab_size is {vocabulary}; "
            "the tokenizer is of another model"
        )
    return torch.tensor([ids])


def cast(weights: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Weights rounded once to the dtype that is compared: what every implementation and the oracle gets."""
    return {name: value.to(dtype) for name, value in weights.items()}


def streamed(
    config: LlamaConfig, weights: Mapping[str, Tensor], dtype: torch.dtype, ops: Ops | None = None
) -> Llama:
    """A reference model that casts each layer's weights when it runs and drops them after.

    The same numbers to the bit as Llama(config, weights, dtype=dtype).

    Args:
        config: canonical config.
        weights: canonical state_dict in a dtype no wider than dtype.
        dtype: to compute in.
        ops: the conventions.
    """
    ops = ops or Ops()
    layers: list[dict[str, Tensor]] = [{} for _ in range(config.num_hidden_layers)]
    outer = {}
    for name, value in weights.items():
        if name.startswith(LAYERS):
            index, part = name.removeprefix(LAYERS).split(".", 1)
            layers[int(index)][part] = value
        else:
            outer[name] = value

    def block_cast_now(x_BTD: Tensor, _: Weights, step: Step) -> Tensor:
        return block(x_BTD, cast(layers[step.layer], dtype), step)

    return Llama(config, outer, ops=replace(ops, block=block_cast_now), dtype=dtype)


def layer_outputs(model: Llama, tokens_BT: Tensor) -> dict[str, Tensor]:
    """What is compared of one forward pass of the reference.

    Returns:
        "layers.{i}.mlp_residual" [B, T, D] and "logits" [B, T, V], in the model's dtype.
    """
    seen: dict[str, Tensor] = {}

    def tap(name: str, value: Tensor) -> None:
        if kept(name):
            seen[name] = value

    with torch.inference_mode():
        model(tokens_BT, tap=tap)
    return seen


def oracle_outputs(
    config: LlamaConfig, weights: Mapping[str, Tensor], tokens_BT: Tensor
) -> dict[str, Tensor]:
    """layer_outputs of the float64 oracle, on weights already rounded to the dtype that is compared."""
    return layer_outputs(streamed(config, weights, torch.float64), tokens_BT)


def perplexity(logits_BTV: Tensor, tokens_BT: Tensor) -> float:
    """exp(−mean log p(token t+1 | tokens to t)), in float64 whatever the logits are in.

    Args:
        logits_BTV: of every token.
        tokens_BT: the same tokens, T ≥ 2.

    Raises:
        ValueError: a single token predicts nothing.
    """
    if tokens_BT.shape[1] < 2:
        raise ValueError(f"{tokens_BT.shape[1]} tokens have no perplexity, expected at least 2")
    total = 0.0
    for logits_TV, ids_T in zip(logits_BTV, tokens_BT, strict=True):
        # A few rows at a time: in float64 a whole text's logits are hundreds of megabytes.
        for rows, targets in zip(logits_TV[:-1].split(64), ids_T[1:].split(64), strict=True):
            log_p = torch.log_softmax(rows.to(torch.float64), dim=-1)
            total -= float(log_p.gather(1, targets[:, None]).sum())
    return float(torch.tensor(total / tokens_BT[:, 1:].numel(), dtype=torch.float64).exp())


class Decoder(Protocol):
    """What greedy needs of a model: its own cache, and the logits [B, T, V] of the next tokens."""

    def new_cache(self, batch: int, capacity: int) -> Any:
        """An empty cache."""

    def step(self, tokens_BT: Tensor, cache: Any) -> Tensor:
        """Logits of the next tokens, which are added to the cache."""


def greedy(model: Decoder, prompt_BT: Tensor, count: int) -> list[int]:
    """The next tokens after a prompt, each the argmax, decoded one by one with the model's own cache.

    Args:
        model: for instance an implementation's.
        prompt_BT: [1, T].
        count: n.

    Returns:
        n ids; of equal logits the lowest id.
    """
    ids: list[int] = []
    tokens = prompt_BT
    with torch.inference_mode():
        cache = model.new_cache(1, prompt_BT.shape[1] + count)
        for _ in range(count):
            ids.append(int(model.step(tokens, cache)[0, -1].argmax()))
            tokens = torch.tensor([ids[-1:]])
    return ids


def oracle_greedy(
    config: LlamaConfig, weights: Mapping[str, Tensor], prompt_BT: Tensor, draft: Decoder, count: int
) -> tuple[list[int], Tensor]:
    """The oracle's own greedy tokens, and its logits at each of them.

    A quick model drafts and one float64 pass checks the whole draft; where they part, the oracle's token is
    taken and the rest is drafted anew. The result does not depend on the draft, only the time does.

    Args:
        config: canonical config.
        weights: canonical state_dict, rounded to the dtype that is compared.
        prompt_BT: [1, T].
        draft: guesses, usually the reference in float32.
        count: n.

    Returns:
        n ids, and float64 logits [n, V] from which each was chosen.
    """
    start = prompt_BT.shape[1]
    oracle = streamed(config, weights, torch.float64)
    ids: list[int] = []
    while True:
        tokens = torch.cat((prompt_BT, torch.tensor([ids], dtype=torch.int64)), dim=1)
        ids = ids + greedy(draft, tokens, count - len(ids)) if len(ids) < count else ids
        whole = torch.cat((prompt_BT, torch.tensor([ids])), dim=1)
        with torch.inference_mode():
            logits_nV = oracle(whole[:, :-1])[0, start - 1 :]
        best = logits_nV.argmax(-1).tolist()
        wrong = next((i for i in range(count) if ids[i] != best[i]), None)
        if wrong is None:
            return ids, logits_nV
        ids = [*ids[:wrong], best[wrong]]


def parting(ids: list[int], oracle_ids: list[int], oracle_logits_nV: Tensor) -> tuple[int, float] | None:
    """Where greedy tokens leave the oracle's, and by how much the oracle preferred its own there.

    Later tokens answer another context and are not compared.

    Args:
        ids: an implementation's.
        oracle_ids, oracle_logits_nV: from oracle_greedy.

    Returns:
        step and gap of the two logits (in logits, ≥ 0), None where all tokens agree.
    """
    for step, (got, want) in enumerate(zip(ids, oracle_ids, strict=True)):
        if got != want:
            row = oracle_logits_nV[step]
            return step, float(row[want] - row[got])
    return None
