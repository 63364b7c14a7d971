"""How the reference answers each question, at any setting: as oracle, or as a yardstick.

An answer at order > 0 is computed on jointly permuted inputs and brought back: the same function, its sums
taken in another order.
"""

from __future__ import annotations

import functools
from typing import cast

import torch
from torch import Tensor

from conformance.cases import (
    AttentionCase,
    Case,
    GateCase,
    LongAttentionCase,
    MaskedAttentionCase,
    ModelCase,
    NormCase,
    PackedCase,
    PaddedCase,
    RotateCase,
    TableCase,
)
from conformance.numerics.settings import Setting
from conformance.weights import hidden_order, permute_jointly
from reference_impl import Llama, Ops
from reference_impl.attention import causal_mask
from reference_impl.model import loss
from reference_impl.norm import statistic_dtype
from reference_impl.ops import scale
from reference_impl.rope import inv_freq, tables


def shuffle(width: int, order: int) -> Tensor:
    """The order in which a row of that width is summed."""
    if order == 0:
        return torch.arange(width)
    return torch.randperm(width, generator=torch.Generator().manual_seed(order))


def rms_norm(case: Case, setting: Setting) -> Tensor:
    """w · x / sqrt(mean(x²) + eps); [rows, n]."""
    case = cast(NormCase, case)
    x, weight = (t.to(setting.dtype) for t in case.inputs())
    return norm_of(x, weight, case.eps, setting.ops, setting.order)


def norm_of(x: Tensor, weight: Tensor, eps: float, ops: Ops, order: int) -> Tensor:
    """The norm of x [..., n], its squares summed in the given order; [..., n]."""
    at = shuffle(x.shape[-1], order)
    y = torch.empty_like(x)
    y[..., at] = ops.rms_norm(x[..., at], weight[at], eps)
    return y


def silu_mul(case: Case, setting: Setting) -> Tensor:
    """silu(gate) ⊙ up; [rows, width]."""
    gate, up = (t.to(setting.dtype) for t in cast(GateCase, case).inputs())
    return setting.ops.gated(gate, up, "silu", setting.ops)


def rope_tables(case: Case, setting: Setting) -> Tensor:
    """cos, then sin, of half width; [2, T, d/2]."""
    case = cast(TableCase, case)
    angle_dtype = torch.float32 if setting.angles == "contract" else setting.dtype
    frequencies = setting.ops.inv_freq(case.config.rope, case.config.head_dim, angle_dtype)
    return torch.stack(setting.ops.tables(frequencies, case.positions(), setting.dtype))


def tables_of(case: RotateCase, setting: Setting, shift: int = 0) -> tuple[Tensor, Tensor]:
    """cos and sin [T, d/2] for a rotation; contract tables are rounded to the case's dtype first."""
    exact = setting.angles == "exact"
    angle_dtype = setting.dtype if exact else torch.float32
    frequencies = inv_freq(case.config.rope, case.head_dim, angle_dtype)
    dtype = setting.dtype if exact else case.torch_dtype
    cos, sin = setting.ops.tables(frequencies, case.positions() + shift, dtype)
    return cos.to(setting.dtype), sin.to(setting.dtype)


def apply_rope(case: Case, setting: Setting) -> Tensor:
    """Rotated q, then k, along the heads; [B, H + G, T, d]."""
    case = cast(RotateCase, case)
    q, k = (t.to(setting.dtype) for t in case.inputs())
    return torch.cat(setting.ops.apply_rope(q, k, *tables_of(case, setting)), dim=1)


def contract_tables(case: RotateCase, shift: int = 0) -> tuple[Tensor, Tensor]:
    """cos and sin [T, d/2], float32, for implementations that offer no tables of their own."""
    positions = case.positions() + shift
    return tables(inv_freq(case.config.rope, case.head_dim), positions, torch.float32)


def unrotated(case: Case, setting: Setting) -> Tensor:
    """q, then k, as they are; [B, H + G, T, d]."""
    return torch.cat([t.to(setting.dtype) for t in cast(RotateCase, case).inputs()], dim=1)


def rotated_scores(case: Case, setting: Setting) -> Tensor:
    """Scores of every rotated query with every rotated key of its group; [B, H, T, T].

    Exact angles need no shift: the scores depend on the distance alone. At contract angles the shift is
    made, so that the budget knows how far the rounding of large angles takes them apart.
    """
    case = cast(RotateCase, case)
    q, k = (t.to(setting.dtype) for t in case.inputs())
    shift = 0 if setting.angles == "exact" else case.shift
    return scores(*setting.ops.apply_rope(q, k, *tables_of(case, setting, shift)))


def rotated_lengths(case: Case, setting: Setting) -> Tensor:
    """Length of every rotated vector of q, then k; [B, H + G, T]."""
    return lengths(apply_rope(case, setting))


def lengths(x: Tensor) -> Tensor:
    """Length of the vectors [..., d], in float32 at least, rounded back; [...]."""
    squares = x.to(statistic_dtype(x.dtype)).pow(2)
    return squares.sum(dim=-1).sqrt().to(x.dtype)


def scores(q: Tensor, k: Tensor) -> Tensor:
    """q · kᵀ per query head, summed in float32 at least; [B, H, T, T] in q's dtype."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    wide = statistic_dtype(q.dtype)
    return (q.to(wide) @ k.to(wide).transpose(-2, -1)).to(q.dtype)


def causal(case: AttentionCase) -> Tensor:
    """The mask [T, S] of a case, bottom-right."""
    return causal_mask(case.tokens, case.keys)


def attention_core(case: Case, setting: Setting) -> Tensor:
    """Attention of rotated q on k and v, causal bottom-right; [B, H, T, d]."""
    case = cast(AttentionCase, case)
    q, k, v = (t.to(setting.dtype) for t in case.inputs())
    return attention_of(q, k, v, causal(case), setting.ops, setting.order)


def long_attention(case: Case, setting: Setting) -> Tensor:
    """Attention of the queries that are compared, on all keys that each sees; [B, H, asked, d]."""
    case = cast(LongAttentionCase, case)
    q, k, v = (t.to(setting.dtype) for t in case.inputs())
    at = case.places()
    return attention_of(q[:, :, at], k, v, causal(case)[at], setting.ops, setting.order)


def attention_of(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, ops: Ops, order: int) -> Tensor:
    """Attention under a mask [..., T, S], its scores and its weighted mean summed in the given order."""
    head_dim, keys = q.shape[-1], k.shape[-2]
    at, width = shuffle(keys, order), shuffle(head_dim, order)
    mask = mask[..., at]
    return ops.attention(q[..., width], k[:, :, at][..., width], v[:, :, at], mask, scale(head_dim), ops)


@functools.lru_cache(maxsize=256)  # 0.3 MB each
def _model(bare: ModelCase, setting: Setting) -> Llama:
    weights = bare.weights()
    if setting.order:
        weights = permute_jointly(bare.config, weights, setting.order)
    return Llama(bare.config, weights, ops=setting.ops, dtype=setting.dtype, angles=setting.angles)


def model_of(case: ModelCase, setting: Setting) -> Llama:
    """The reference model of a case at a setting; shared between cases on the same weights."""
    twin = case.twin
    bare = ModelCase(
        dtype=case.dtype,
        seed=case.seed,
        variant=twin.variant,
        shape=twin.shape,
        regime=case.regime,
        but=case.but,
    )
    return _model(bare, setting)


def logits(case: Case, setting: Setting) -> Tensor:
    """Logits of a full forward pass; [B, T, V]."""
    case = cast(ModelCase, case)
    positions = None if case.places == "run" else case.positions()
    return model_of(case, setting)(case.token_ids(), positions=positions)


def first_logits(case: Case, setting: Setting) -> Tensor:
    """Logits of the first half of the tokens; [B, T // 2, V]."""
    return logits(case, setting)[:, : cast(ModelCase, case).tokens // 2]


def logits_but_the_last(case: Case, setting: Setting) -> Tensor:
    """Logits of all tokens but the last; [B, T − 1, V]."""
    return logits(case, setting)[:, :-1]


def loss_parts(x: Tensor) -> list[Tensor]:
    """What losses are taken of, x [B, T, …]: the batch and each of its rows, then their first two tokens."""
    return [part for whole in (x, x[:, :2]) for part in (whole, *torch.split(whole, 1))]


def losses(case: Case, setting: Setting) -> Tensor:
    """The loss of each of loss_parts; [2 + 2·B]: one number alone is rounded too erratically for a budget."""
    parts = zip(loss_parts(logits(case, setting)), loss_parts(cast(ModelCase, case).token_ids()), strict=True)
    return torch.stack([loss(*part) for part in parts])


# By how much the positions of a whole module are shifted; the small configs allow for it.
SHIFT = 57


def _layer(case: ModelCase, setting: Setting, part: str, shift: int = 0) -> Tensor:
    """One part of one layer on case.hidden(); [B, T, D], brought back to the order as written."""
    model = model_of(case, setting)
    order = (
        hidden_order(case.config, setting.order) if setting.order else torch.arange(case.config.hidden_size)
    )
    x = case.hidden().to(setting.dtype)[..., order]
    step = model.step(case.layer, case.positions() + shift, model.mask(case.tokens, case.tokens))
    y = torch.empty_like(x)
    y[..., order] = getattr(setting.ops, part)(x, model.layers[case.layer], step)
    return y


def attention_module(case: Case, setting: Setting) -> Tensor:
    """Attention of a layer with its projections; [B, T, D]."""
    return _layer(cast(ModelCase, case), setting, "attention_module")


def shifted_attention_module(case: Case, setting: Setting) -> Tensor:
    """The same with all positions SHIFT further on; exact angles need no shift (see rotated_scores)."""
    shift = 0 if setting.angles == "exact" else SHIFT
    return _layer(cast(ModelCase, case), setting, "attention_module", shift)


def mlp(case: Case, setting: Setting) -> Tensor:
    """Feed-forward network of a layer; [B, T, D]."""
    return _layer(cast(ModelCase, case), setting, "mlp")


def block(case: Case, setting: Setting) -> Tensor:
    """A whole layer; [B, T, D]."""
    return _layer(cast(ModelCase, case), setting, "block")


def logits_alone(case: Case, setting: Setting) -> Tensor:
    """Logits of all real tokens, each row and each document computed on its own; [N, V].

    So the right answer to a padded or packed batch owes nothing to the reference's own masks.
    """
    case = cast(PaddedCase | PackedCase, case)
    model, pieces = model_of(case, setting), case.alone()
    found: dict[int, Tensor] = {}
    for length in {len(tokens) for tokens, _ in pieces}:
        which = [i for i, (tokens, _) in enumerate(pieces) if len(tokens) == length]
        begins = torch.tensor([pieces[i][1] for i in which])
        tokens = torch.stack([pieces[i][0] for i in which])
        rows = model(tokens, positions=begins[:, None] + torch.arange(length))
        found.update(zip(which, rows, strict=True))
    return torch.cat([found[i] for i in sorted(found)])


def masked_attention(case: Case, setting: Setting) -> Tensor:
    """Attention of every query that sees something, on the keys that any query of its row sees; [N, H, d].

    The others are left out, so that nothing in them can matter.
    """
    case = cast(MaskedAttentionCase, case)
    q, k, v = (t.to(setting.dtype) for t in case.inputs())
    width, rows = shuffle(case.head_dim, setting.order), []
    for q_HTd, k_GSd, v_GSd, mask in zip(q, k, v, case.rows(), strict=True):
        seen = mask.any(dim=0).nonzero()[:, 0]
        at = seen[shuffle(len(seen), setting.order)]
        keys, values = k_GSd[None, :, at][..., width], v_GSd[None, :, at]
        ops, shown = setting.ops, mask[:, at]
        rows.append(ops.attention(q_HTd[None][..., width], keys, values, shown, case.scale, ops))
    return torch.cat(rows).transpose(1, 2)[case.sees()]
