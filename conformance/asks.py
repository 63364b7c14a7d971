"""How a question is put to an implementation: the counterpart of conformance/numerics/answers.py."""

from __future__ import annotations

import torch
from torch import Tensor

from conformance.cases import (
    AttentionCase,
    CompiledAttentionCase,
    GateCase,
    LongAttentionCase,
    MaskedAttentionCase,
    ModelCase,
    NormCase,
    PackedCase,
    PaddedCase,
    RotateCase,
)
from conformance.implementations.base import Model, Unsupported
from conformance.numerics import answers
from conformance.numerics.verdict import Answer
from conformance.subject import Subject


def rms_norm(subject: Subject, case: NormCase) -> Tensor:
    """Normed rows."""
    x, weight = (subject.on_device(t) for t in case.inputs())
    return subject.implementation.rms_norm(x, weight, case.eps)


def silu_mul(subject: Subject, case: GateCase) -> Tensor:
    """The gate of SwiGLU."""
    gate, up = (subject.on_device(t) for t in case.inputs())
    return subject.implementation.silu_mul(gate, up)


def tables(subject: Subject, case: RotateCase, shift: int = 0) -> list[Tensor]:
    """cos and sin [T, d] for a rotation: its own where it offers them, the contract's elsewhere."""
    positions = case.positions() + shift
    try:
        cos, sin = subject.implementation.rope_tables(case.config, subject.on_device(positions))
    except Unsupported:
        cos, sin = (subject.on_device(t) for t in answers.contract_tables(case, shift))
    width = case.head_dim // cos.shape[-1]
    return [torch.cat([t] * width, dim=-1).to(case.torch_dtype) for t in (cos, sin)]


def apply_rope(subject: Subject, case: RotateCase, shift: int = 0) -> tuple[Tensor, Tensor]:
    """Rotated q and k, by tables as tables() gives them: for laws, which hold for any right ones."""
    q, k = (subject.on_device(t) for t in case.inputs())
    cos, sin = tables(subject, case, shift)
    return subject.implementation.apply_rope(q, k, cos, sin)


def contract_tables(subject: Subject, case: RotateCase) -> list[Tensor]:
    """cos and sin [T, d] of the contract: where the rotation is compared, and not the frequencies."""
    halves = (subject.on_device(t).to(case.torch_dtype) for t in answers.contract_tables(case))
    return [torch.cat([t, t], dim=-1) for t in halves]


def rotation(subject: Subject, case: RotateCase) -> tuple[Tensor, Tensor]:
    """q and k rotated by the contract's tables, whatever the implementation's own are."""
    q, k = (subject.on_device(t) for t in case.inputs())
    cos, sin = contract_tables(subject, case)
    return subject.implementation.apply_rope(q, k, cos, sin)


def attention_core(subject: Subject, case: AttentionCase) -> Tensor:
    """Attention of rotated q on k and v."""
    q, k, v = (subject.on_device(t) for t in case.inputs())
    mask = subject.on_device(answers.causal(case))
    return subject.implementation.attention_core(q, k, v, mask, case.head_dim**-0.5)


def compiled_attention(subject: Subject, case: CompiledAttentionCase) -> Tensor:
    """The same by a compiled kernel."""
    q, k, v, mask = (subject.on_device(t) for t in (*case.inputs(), answers.causal(case)))
    return subject.implementation.compiled_attention_core(q, k, v, mask, case.head_dim**-0.5)


def long_attention(subject: Subject, case: LongAttentionCase) -> Tensor:
    """The same over many tokens, of the queries that are compared; [B, H, asked, d]."""
    return attention_core(subject, case)[:, :, subject.on_device(case.places())]


def logits(subject: Subject, case: ModelCase) -> Tensor:
    """Logits of a full forward pass."""
    return logits_of(subject.model(case), subject, case)


def logits_of(model: Model, subject: Subject, case: ModelCase) -> Tensor:
    """The same of a model that was built in another way than from the case."""
    positions = None if case.places == "run" else subject.on_device(case.positions())
    return model.logits(subject.on_device(case.token_ids()), positions)


def autocast_logits(subject: Subject, case: ModelCase) -> Tensor:
    """Logits [B, T, V] under autocast to the case's dtype, of a float32 model on its weights.

    Raises:
        Unsupported: the model fails under autocast.
    """
    weights = {name: subject.on_device(w.float()) for name, w in case.weights().items()}
    model, tokens = subject.implementation.build(case.config, weights), subject.on_device(case.token_ids())
    try:
        with torch.autocast(subject.device.type, dtype=case.torch_dtype):
            y = model.logits(tokens)
    except Unsupported:
        raise
    except Exception as error:
        raise Unsupported(f"fails under autocast ({type(error).__name__}: {error})") from error
    return y.to(case.torch_dtype)


def stepped(subject: Subject, case: ModelCase) -> Tensor:
    """Logits of all tokens, chunk by chunk through the implementation's own cache."""
    return stepped_on(subject.model(case), subject.on_device(case.token_ids()), case)


def stepped_on(model: Model, tokens_BT: Tensor, case: ModelCase) -> Tensor:
    """The same on other tokens than the case's."""
    cache = model.new_cache(case.batch, case.tokens)
    chunks = torch.split(tokens_BT, list(case.chunks), dim=1)
    return torch.cat([model.step(chunk, cache) for chunk in chunks], dim=1)


def attention_module(subject: Subject, case: ModelCase) -> Tensor:
    """Attention of a layer with its projections."""
    return attention_module_of(subject.model(case), subject, case)


def attention_module_of(model: Model, subject: Subject, case: ModelCase) -> Tensor:
    """The same of a model that was built in another way than from the case."""
    x, positions = (subject.on_device(t) for t in (case.hidden(), case.positions()))
    return model.attention_module(x, positions, case.layer)


def attention(subject: Subject, case: ModelCase) -> tuple[Tensor, Answer]:
    """Attention of a layer where that is offered, logits elsewhere, and how the reference answers."""
    return attention_of(subject.model(case), subject, case)


def attention_of(model: Model, subject: Subject, case: ModelCase) -> tuple[Tensor, Answer]:
    """The same of a model that was built in another way than from the case."""
    try:
        return attention_module_of(model, subject, case), answers.attention_module
    except Unsupported:
        return logits_of(model, subject, case), answers.logits


def mlp(subject: Subject, case: ModelCase) -> Tensor:
    """Feed-forward network of a layer."""
    return subject.model(case).mlp(subject.on_device(case.hidden()), case.layer)


def masked_attention(subject: Subject, case: MaskedAttentionCase) -> Tensor:
    """Attention of rotated q on k and v under the mask of the case; [B, H, T, d]."""
    q, k, v, mask = (subject.on_device(t) for t in (*case.inputs(), case.mask()))
    return subject.implementation.attention_core(q, k, v, mask, case.scale)


def that_see(y_BHTd: Tensor, case: MaskedAttentionCase) -> Tensor:
    """Of a result, the rows of the queries that see something; [N, H, d], as answers.masked_attention."""
    return y_BHTd.transpose(1, 2)[case.sees().to(y_BHTd.device)]


def batch_logits(subject: Subject, case: PaddedCase | PackedCase, *, placed: bool) -> Tensor:
    """Logits [B, T, V] of a padded or packed batch, padding included.

    Args:
        subject: who is asked.
        case: on what.
        placed: whether positions are given, or left to the implementation.
    """
    positions = subject.on_device(case.positions()) if placed else None
    tokens, mask = subject.on_device(case.token_ids()), subject.on_device(case.mask())
    return subject.model(case).logits(tokens, positions, mask)


def logits_alone(subject: Subject, case: PaddedCase | PackedCase, *, placed: bool) -> Tensor:
    """Of these logits, those of real tokens; [N, V], as answers.logits_alone."""
    return batch_logits(subject, case, placed=placed)[subject.on_device(case.real())]
