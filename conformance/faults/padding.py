"""Wrong padding, and documents packed wrongly."""

from __future__ import annotations

import torch
from torch import Tensor

from conformance.faults.catalogue import Fault, model_fault, ops_fault
from conformance.implementations.reference import ReferenceModel
from reference_impl import KVCache, Llama, Ops
from reference_impl.attention import causal_mask, hide_padding
from reference_impl.block import Step, Tap, no_tap
from reference_impl.ops import padded_positions


def seen_by_all(mask: Tensor, real: Tensor) -> Tensor:
    """Padding seen like any token."""
    return mask.expand(len(real), 1, -1, -1)


def queries_hidden(mask: Tensor, real: Tensor) -> Tensor:
    """Padding sees nothing, and is seen."""
    return mask & real[:, None, -len(mask) :, None]


def inverted(mask: Tensor, real: Tensor) -> Tensor:
    """Padding alone is seen."""
    return hide_padding(mask, ~real)


def transposed(mask: Tensor, real: Tensor) -> Tensor:
    """A mask [S, B] read as [B, S]."""
    return hide_padding(mask, real.t().reshape(real.shape))


def of_the_first_row(mask: Tensor, real: Tensor) -> Tensor:
    """The padding of the first row for all."""
    return hide_padding(mask, real[:1])


def on_the_right(mask: Tensor, real: Tensor) -> Tensor:
    """As many tokens hidden as there are, but on the right."""
    return hide_padding(mask, torch.arange(real.shape[1], device=real.device) < real.sum(1, keepdim=True))


def on_the_left(mask: Tensor, real: Tensor) -> Tensor:
    """As many tokens hidden as there are, but on the left."""
    hidden = (~real).sum(1, keepdim=True)
    return hide_padding(mask, torch.arange(real.shape[1], device=real.device) >= hidden)


def hidings(mask: Tensor, real: Tensor) -> Tensor:
    """How often each score is hidden: as one of the future, of padding, and of a query that is padding."""
    padding = (~real).int()
    return (~mask).int() + padding[:, None, None, :] + padding[:, None, -len(mask) :, None]


def minima_added(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, ops: Ops) -> Tensor:
    """The lowest number added for every mask that hides a score: twice, it is minus infinity."""
    group_size = q.shape[1] // k.shape[1]
    scores = q @ ops.expand_kv(k, group_size).transpose(-2, -1) * scale
    if mask is not None:
        often = (~mask if mask.dtype == torch.bool else mask).to(scores.dtype)
        scores = scores + often * torch.finfo(scores.dtype).min
    return ops.softmax(scores) @ ops.expand_kv(v, group_size)


class HiddenById(ReferenceModel):
    """Padding told by its token id, which may stand in the text as well."""

    def logits(
        self, tokens_BT: Tensor, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """See Model.logits."""
        if mask is not None and mask.ndim == 2 and not mask.all():
            mask = tokens_BT != tokens_BT[~mask][0]
        return super().logits(tokens_BT, positions, mask)


# Positions.


def by_slot(_processed: Tensor, real: Tensor) -> Tensor:
    """Slots for positions, padding counted."""
    return torch.arange(real.shape[1], device=real.device)


def of_row_0(processed: Tensor, real: Tensor) -> Tensor:
    """The positions of the first row for all."""
    return padded_positions(processed[:1], real[:1]).expand(real.shape)


def from_one(processed: Tensor, real: Tensor) -> Tensor:
    """The first real token at position 1."""
    return padded_positions(processed + 1, real)


class Tabled(Llama):
    """A table as long as the context, whose last row is used beyond."""

    def step(
        self,
        layer: int,
        positions: Tensor,
        mask: Tensor | None,
        cache: KVCache | None = None,
        tap: Tap = no_tap,
    ) -> Step:
        """See Llama.step."""
        last = self.config.max_position_embeddings - 1
        return super().step(layer, positions.clamp(max=last), mask, cache, tap)


class InATable(ReferenceModel):
    """One whose positions are rows of a table: right, as long as they are within it."""

    def __init__(self, right: Llama) -> None:
        super().__init__(Tabled(right.config, right.weights, ops=right.ops, dtype=right.dtype))


class WindowOverSlots(ReferenceModel):
    """A window that begins w positions behind the token, looked up among the slots."""

    def logits(
        self, tokens_BT: Tensor, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """See Model.logits."""
        window = self.llama.config.sliding_window
        if mask is None or mask.ndim == 3 or window is None:
            return super().logits(tokens_BT, positions, mask)
        counted = (mask.cumsum(dim=1) - 1).clamp(min=0)
        slots = torch.arange(mask.shape[1], device=mask.device)
        seen = causal_mask(len(slots), len(slots), mask.device) & (slots > counted[:, :, None] - window)
        return super().logits(tokens_BT, counted, seen & mask[:, None])


# Packed documents.


class Packed(ReferenceModel):
    """One that does something to the mask of packed documents."""

    def logits(
        self, tokens_BT: Tensor, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """See Model.logits."""
        if mask is None or mask.ndim == 2:
            return super().logits(tokens_BT, positions, mask)
        return super().logits(tokens_BT, *self.changed(positions, mask))

    @staticmethod
    def changed(positions: Tensor | None, mask: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Positions and mask as they are passed on."""
        return positions, mask


class DocumentsIgnored(Packed):
    """Positions begin anew, and all that came before is seen."""

    @staticmethod
    def changed(positions: Tensor | None, _mask: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """See Packed.changed."""
        return positions, None


class DocumentsOfRow0(Packed):
    """The documents of the first row in all."""

    @staticmethod
    def changed(positions: Tensor | None, mask: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """See Packed.changed."""
        return positions, mask[:1].expand_as(mask)


class OneTooEarly(Packed):
    """A document that begins with the last token of the one before."""

    @staticmethod
    def changed(positions: Tensor | None, mask: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """See Packed.changed."""
        return positions, mask | torch.ones_like(mask[0]).diagonal(-1).diag(-1)


class RunningOn(Packed):
    """Positions that run on from document to document, whatever is given."""

    @staticmethod
    def changed(_positions: Tensor | None, mask: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """See Packed.changed."""
        return None, mask


FAULTS: list[Fault] = [
    ops_fault("padding.seen", "MASK-3", hide_padding=seen_by_all),
    ops_fault("padding.queries-hidden", "MASK-3", hide_padding=queries_hidden),
    ops_fault("padding.inverted", "MASK-3", hide_padding=inverted),
    ops_fault("padding.transposed", "MASK-3", hide_padding=transposed),
    ops_fault("padding.of-row-0", "MASK-3", hide_padding=of_the_first_row),
    ops_fault("padding.right-assumed", "MASK-3", hide_padding=on_the_right),
    ops_fault("padding.left-assumed", "MASK-3", hide_padding=on_the_left),
    model_fault("padding.by-token-id", "MASK-5", "classical", HiddenById),
    ops_fault(
        "padding.two-minima",
        "MASK-4",
        "huggingface/transformers#27114",
        hide_padding=hidings,
        attention=minima_added,
    ),
    ops_fault("padding.slot-positions", "MASK-3", "huggingface/transformers#33095", padded_positions=by_slot),
    ops_fault("padding.positions-of-row-0", "MASK-3", padded_positions=of_row_0),
    model_fault("padding.slots-in-a-table", "MASK-3", "classical", InATable, padded_positions=by_slot),
    model_fault("padding.from-one-in-a-table", "MASK-3", "classical", InATable, padded_positions=from_one),
    model_fault("padding.window-over-slots", "MASK-7", "classical", WindowOverSlots),
    model_fault("packing.documents-ignored", "MASK-6", "huggingface/nanoVLM#204", DocumentsIgnored),
    model_fault("packing.of-row-0", "MASK-6", "classical", DocumentsOfRow0),
    model_fault("packing.one-too-early", "MASK-6", "classical", OneTooEarly),
    model_fault("packing.running-on", "MASK-6", "hiyouga/LlamaFactory#7318", RunningOn),
]
