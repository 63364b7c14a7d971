"""Wrong ends: the final norm, the unembedding, the loss."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from conformance.faults.catalogue import Fault, Weights, load_fault, model_fault, ops_fault
from conformance.implementations.reference import ReferenceModel
from reference_impl import Llama, LlamaConfig
from reference_impl.block import Tap, no_tap

Loss = Callable[[Tensor, Tensor], Tensor]  # (logits [B, T, V], tokens [B, T]) → scalar


def times(factor: float, wrong_at: Callable[[Tensor, Tensor], bool]) -> object:
    """Projections off by a factor where (x, weight) are so and so."""
    return lambda x, w, b: functional.linear(x, w, b) * (factor if wrong_at(x, w) else 1.0)


def ending(logits_of: Callable[[Llama, Tensor, Tap], Tensor]) -> type[ReferenceModel]:
    """A model whose logits follow from the residual stream in another way."""

    class WrongEnd(Llama):
        def unembed(self, x_BTD: Tensor, tap: Tap = no_tap) -> Tensor:
            seen: dict[str, Tensor] = {}
            logits = logits_of(self, x_BTD, seen.__setitem__)
            for name, value in {**seen, "logits": logits}.items():
                tap(name, value)
            return logits

    class Wrong(ReferenceModel):
        def __init__(self, llama: Llama) -> None:
            super().__init__(WrongEnd(llama.config, llama.weights, ops=llama.ops, dtype=llama.dtype))

    return Wrong


def shown(change: Callable[[Tensor], Tensor]) -> type[ReferenceModel]:
    """A model whose logits are changed at the very end."""
    return ending(lambda llama, x, tap: change(Llama.unembed(llama, x, tap)))


def losing(loss: Loss) -> type[ReferenceModel]:
    """A model with another loss."""

    class Wrong(ReferenceModel):
        def loss(self, tokens_BT: Tensor) -> Tensor:
            return loss(self.logits(tokens_BT), tokens_BT)

    return Wrong


def last_token_rolled(logits: Tensor) -> Tensor:
    """The vocabulary one late, in the last row alone."""
    return torch.cat([logits[:, :-1], logits[:, -1:].roll(1, -1)], dim=1)


def centred(logits: Tensor) -> Tensor:
    """The mean over the vocabulary taken out: probabilities, tokens and loss stay the same."""
    return logits - logits.mean(dim=-1, keepdim=True)


def soft_capped(logits: Tensor) -> Tensor:
    """Logits bent at 30, as Gemma 2's."""
    return 30 * torch.tanh(logits / 30)


def head(llama: Llama, x: Tensor, _tap: Tap = no_tap) -> Tensor:
    """The unembedding alone."""
    tied = llama.config.tie_word_embeddings
    return functional.linear(x, llama.weights["model.embed_tokens.weight" if tied else "lm_head.weight"])


def norm_after_head(llama: Llama, x: Tensor, _tap: Tap) -> Tensor:
    """The rows of the vocabulary normed in place of the stream."""
    logits = head(llama, x)
    return llama.ops.rms_norm(logits, torch.ones_like(logits[0, 0]), llama.config.rms_norm_eps)


def first_norms_weight(config: LlamaConfig, weights: Weights) -> tuple[LlamaConfig, Weights]:
    """The final norm by the weight of layer 0's first."""
    return config, {**weights, "model.norm.weight": weights["model.layers.0.input_layernorm.weight"]}


def unshifted(logits: Tensor, tokens: Tensor) -> Tensor:
    """Every token predicted from itself."""
    return functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def shifted_back(logits: Tensor, tokens: Tensor) -> Tensor:
    """Every token predicted from the one after it."""
    return functional.cross_entropy(logits[:, 1:].flatten(0, 1), tokens[:, :-1].flatten())


def shifted_twice(logits: Tensor, tokens: Tensor) -> Tensor:
    """Labels that were shifted before they are shifted; the last row is left out."""
    ahead = torch.cat([tokens[:, 1:], tokens.new_full((len(tokens), 1), -100)], dim=1)[:, 1:]
    total = functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), ahead.flatten(), ignore_index=-100, reduction="sum"
    )
    return total / max(int((ahead >= 0).sum()), 1)


def summed(logits: Tensor, tokens: Tensor) -> Tensor:
    """The sum in place of the mean."""
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum")


def over_all_tokens(logits: Tensor, tokens: Tensor) -> Tensor:
    """The sum over T − 1 predictions divided by T."""
    return summed(logits, tokens) / tokens.numel()


def wrapped(logits: Tensor, tokens: Tensor) -> Tensor:
    """The last row kept: it is to predict the first token."""
    return functional.cross_entropy(logits.flatten(0, 1), tokens.roll(-1, dims=1).flatten())


def vocabulary_first(logits: Tensor, tokens: Tensor) -> Tensor:
    """[B·T, V] read as [V, B·T]: a view in place of a transposition."""
    rows = logits[:, :-1].reshape(logits.shape[-1], -1).T
    return functional.cross_entropy(rows, tokens[:, 1:].flatten())


def rows_summed(logits: Tensor, tokens: Tensor) -> Tensor:
    """The means of the rows added up."""
    means = [functional.cross_entropy(row[:-1], ids[1:]) for row, ids in zip(logits, tokens, strict=True)]
    return torch.stack(means).sum()


FAULTS: list[Fault] = [
    ops_fault("logits.2-percent", "LOGITS-1", linear=times(1.02, lambda _x, w: w.shape[0] == 131)),
    ops_fault("logits.wrong-in-fp16", "LOGITS-2", linear=times(1.05, lambda x, _w: x.dtype == torch.float16)),
    ops_fault("logits.wrong-at-33", "LOGITS-2", linear=times(1.5, lambda x, _w: x.shape[-2] == 33)),
    model_fault("logits.centred", "LOGITS-1", "TransformerLensOrg/TransformerLens#693", shown(centred)),
    model_fault("logits.rolled", "LOGITS-4", "classical", shown(lambda logits: logits.roll(1, -1))),
    model_fault("logits.last-token-rolled", "LOGITS-4", "classical", shown(last_token_rolled)),
    model_fault("logits.no-final-norm", "LOGITS-7", "classical", ending(head)),
    model_fault("logits.norm-after-head", "LOGITS-7", "classical", ending(norm_after_head)),
    load_fault("logits.first-norms-weight", "LOGITS-7", "classical", first_norms_weight),
    model_fault("logits.soft-capped", "LOGITS-7", "classical", shown(soft_capped)),
    model_fault("logits.loss-unshifted", "LOGITS-5", "classical", losing(unshifted)),
    model_fault("logits.loss-shifted-back", "LOGITS-5", "classical", losing(shifted_back)),
    model_fault("logits.loss-shifted-twice", "LOGITS-5", "classical", losing(shifted_twice)),
    model_fault("logits.loss-summed", "LOGITS-5", "hiyouga/LlamaFactory#7443", losing(summed)),
    model_fault("logits.loss-over-all-tokens", "LOGITS-5", "classical", losing(over_all_tokens)),
    model_fault("logits.loss-wrapped", "LOGITS-5", "classical", losing(wrapped)),
    model_fault("logits.loss-vocabulary-first", "LOGITS-5", "classical", losing(vocabulary_first)),
    model_fault("logits.loss-rows-summed", "LOGITS-5", "hiyouga/LlamaFactory#7443", losing(rows_summed)),
]
