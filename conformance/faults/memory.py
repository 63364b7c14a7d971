"""More memory than the config implies, tables and masks where none should be; the logits are right."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from conformance.faults.catalogue import Fault, model_fault, ops_fault
from conformance.implementations.base import Held
from conformance.implementations.reference import ReferenceModel
from reference_impl import Llama
from reference_impl.attention import causal_mask
from reference_impl.block import Step, Weights, attention_module
from reference_impl.rope import tables

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


class TwoLeaves(ReferenceModel):
    """Two parameters on one storage where embeddings are tied: two gradients, and two steps of training."""

    def gradients(self, tokens_BT: Tensor) -> list[Tensor]:
        """See Model.gradients."""
        llama = self.llama
        if not llama.config.tie_word_embeddings:
            return super().gradients(tokens_BT)
        untied, weights = replace(llama.config, tie_word_embeddings=False), dict(llama.weights)
        weights[HEAD] = weights[EMBEDDING]
        return ReferenceModel(Llama(untied, weights, ops=llama.ops, dtype=llama.dtype)).gradients(tokens_BT)


class ContextMask(ReferenceModel):
    """The mask of the longest context, made when the model is built and kept where nobody lists it."""

    def __init__(self, llama: Llama) -> None:
        super().__init__(llama)
        longest = llama.config.max_position_embeddings
        self.mask = causal_mask(longest, longest)


class ContextMaskBuffer(ContextMask):
    """The same as a buffer."""

    def held(self) -> list[Held]:
        """See Model.held."""
        return [*super().held(), Held(name="mask", tensor=self.mask, kind="buffer", saved=False)]


def mask_of_the_context(x: Tensor, weights: Weights, step: Step) -> Tensor:
    """The mask of the longest context made in every layer of every call, and a corner of it used."""
    past = 0 if step.cache is None else step.cache.length
    tokens, longest = x.shape[1], step.config.max_position_embeddings
    corner = causal_mask(longest, longest, x.device)[past : past + tokens, : past + tokens]
    return attention_module(x, weights, Step(**{**vars(step), "mask": corner}))


class Tables(ReferenceModel):
    """cos and sin of the longest context as buffers.

    Class attributes:
        sets: how many copies.
        saved: whether they are in the state_dict.
    """

    sets: ClassVar[int] = 1
    saved: ClassVar[bool] = False

    def held(self) -> list[Held]:
        """See Model.held."""
        positions = torch.arange(self.llama.config.max_position_embeddings)
        found = super().held()
        for i in range(self.sets):
            halves = tables(self.llama.inv_freq, positions, torch.float32)
            full = (torch.cat((half, half), dim=-1) for half in halves)
            named = zip((f"rotary.{i}.cos", f"rotary.{i}.sin"), full, strict=True)
            found += [Held(name=n, tensor=t, kind="buffer", saved=self.saved) for n, t in named]
        return found


class TablesOfEveryLayer(Tables):
    """A set in each of two layers, and one in the model."""

    sets = 3


class SavedTables(Tables):
    """In the state_dict."""

    saved = True


class Frequencies(ReferenceModel):
    """Frequencies registered as something they are not.

    Class attributes:
        kind: what they are registered as; either way they are in the state_dict.
    """

    kind: ClassVar[Literal["parameter", "buffer"]] = "buffer"

    def held(self) -> list[Held]:
        """See Model.held."""
        *weights, frequencies = super().held()
        return [*weights, replace(frequencies, kind=self.kind, saved=True)]


class TrainedFrequencies(Frequencies):
    """A parameter."""

    kind = "parameter"


FAULTS: list[Fault] = [
    model_fault("memory.tied-gradients-twice", "MEM-1", "paiml/entrenar#314", TwoLeaves),
    model_fault("memory.mask-buffer", "MEM-1", "TransformerLensOrg/TransformerLens#479", ContextMaskBuffer),
    model_fault("memory.tables-of-every-layer", "MEM-1", "rasbt/LLMs-from-scratch#389", TablesOfEveryLayer),
    ops_fault(
        "memory.mask-of-the-context",
        "MASK-8",
        "rasbt/LLMs-from-scratch#389",
        attention_module=mask_of_the_context,
    ),
    model_fault("memory.mask-made-at-build", "MASK-8", "huggingface/transformers#29742", ContextMask),
    model_fault("memory.frequencies-trained", "ROPE-12", "classical", TrainedFrequencies),
    model_fault("memory.frequencies-saved", "ROPE-12", "EleutherAI/gpt-neox#1161", Frequencies),
    model_fault("memory.tables-saved", "ROPE-12", "meta-pytorch/torchtune#158", SavedTables),
]
