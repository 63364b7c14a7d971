"""CACHE: prefill, decode, chunks, and where the next token stands."""

import torch

from conformance import ModelCase, agree, answers, check, require_power, strategies


def stepped(subject, case):
    """Logits of all tokens, chunk by chunk through the implementation's own cache."""
    model = subject.model(case)
    cache = model.new_cache(case.batch, case.tokens)
    chunks = subject.on_device(case.token_ids()).split(list(case.chunks), dim=1)
    return torch.cat([model.step(chunk, cache) for chunk in chunks], dim=1)


def whole(subject, case):
    """Logits of one full pass: what is compared is the cache, whatever else is right or wrong."""
    return subject.model(case).logits(subject.on_device(case.token_ids()))


def chunked(*ways):
    def cases(selection):
        for dtype in selection.dtypes:
            for variant, shape in selection.smalls():
                for chunks in ways:
                    yield ModelCase(
                        dtype=dtype, variant=variant, shape=shape, tokens=sum(chunks), chunks=chunks, batch=2
                    )

    return cases


@check("CACHE-1", cases=chunked((30, 1, 1, 1, 1, 1)))
def test_prefill_and_decode_give_the_logits_of_one_pass(subject, case):
    return agree(stepped(subject, case), whole(subject, case), answers.logits, case)


@check("CACHE-2", cases=chunked((7, 9, 1, 18), (1, 34)), draws=lambda s: strategies.models(s, chunked=True))
def test_any_partition_gives_the_logits_of_one_pass(subject, case):
    return agree(stepped(subject, case), whole(subject, case), answers.logits, case)


@check("CACHE-3", cases=chunked((17, 1, 17)))
def test_the_next_position_is_the_number_of_tokens_processed(subject, case):
    require_power(case.twin)
    return agree(stepped(subject, case), whole(subject, case), answers.logits, case)
