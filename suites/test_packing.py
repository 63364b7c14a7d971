"""MASK-6: several documents in a row, which do not see one another."""

import torch

from conformance import MaskedAttentionCase, PackedCase, agree, answers, asks, check, judge, strategies


def packed(*documents):
    """Positions run on where the mask alone is asked about, and begin anew; in 16-bit the latter."""

    def cases(selection):
        for dtype in selection.dtypes:
            for variant, shape in selection.few():
                for reset in (True, False) if dtype == "float32" else (True,):
                    yield PackedCase(
                        dtype=dtype,
                        variant=variant,
                        shape=shape,
                        batch=2,
                        tokens=sum(documents),
                        documents=documents,
                        reset=reset,
                    )

    return cases


def logits(subject, case):
    return asks.logits_alone(subject, case, placed=case.reset)


@check("MASK-6", cases=packed(5, 9, 1, 5), draws=strategies.packed)
def test_a_packed_document_is_the_document_alone(subject, case):
    """Under a mask alone, where positions run on, and with positions that begin anew."""
    return judge(logits(subject, case), answers.logits_alone, case)


def single_cases(selection):
    return [c for c in packed(*[1] * 20)(selection) if not c.reset]


@check("MASK-6", cases=single_cases)
def test_a_document_of_one_token_sees_itself_alone(subject, case):
    return judge(logits(subject, case), answers.logits_alone, case)


# See test_padding.FAST.
FAST = (("rope.rope_theta", 1.5), ("max_position_embeddings", 512))


def many_cases(selection):
    """So many that positions which run on are rounded to another function."""
    documents = (3,) * 166
    for variant, shape in selection.few():
        yield PackedCase(variant=variant, shape=shape, batch=1, tokens=498, documents=documents, but=FAST)


@check("MASK-6", cases=many_cases)
def test_positions_begin_anew_in_each_of_many_documents(subject, case):
    return judge(logits(subject, case), answers.logits_alone, case)


@check("MASK-6", cases=packed(5, 9, 1, 5), draws=strategies.packed)
def test_another_first_document_leaves_the_logits_of_the_others_unchanged(subject, case):
    """A law without an oracle."""
    model = subject.model(case)
    mask, others = (subject.on_device(t) for t in (case.mask(), case.document() != case.document()[:, :1]))
    positions = subject.on_device(case.positions()) if case.reset else None
    tokens = subject.on_device(case.token_ids())
    changed = torch.where(others, tokens, (tokens + 1) % case.config.vocab_size)
    before, after = (model.logits(t, positions, mask)[others] for t in (tokens, changed))
    return agree(after, before, answers.logits_alone, case)


def document_cases(selection):
    for dtype in selection.dtypes:
        yield MaskedAttentionCase(dtype=dtype, sight="documents", batch=3, tokens=17)
        yield MaskedAttentionCase(dtype=dtype, sight="documents", batch=2, tokens=65, past=3, kv_heads=3)


@check("MASK-6", cases=document_cases, draws=lambda s: strategies.masked(s, "documents"))
def test_attention_ends_where_the_document_begins(subject, case):
    return judge(asks.that_see(asks.masked_attention(subject, case), case), answers.masked_attention, case)
