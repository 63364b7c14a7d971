"""WEIGHT-7: whatever format the weights come in, the model is the same, and export gives the bits back."""

from dataclasses import replace

import torch

from conformance import ModelCase, Unsupported, agree, answers, asks, check, exact, formats_of, to_format

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
BIASES = (("attention_bias", True), ("mlp_bias", True))


def format_cases(regime, *dtypes):
    """6 query on 2 kv heads, H·d ≠ D: with 4 on 2, k permuted by the wrong number of heads is the same."""

    def cases(selection):
        for dtype in (d for d in dtypes if d in selection.dtypes):
            for variant, shape in selection.few():
                for but in ((), BIASES):
                    yield ModelCase(dtype=dtype, variant=variant, shape=shape, regime=regime, but=but)

    return cases


def through_each_format(subject, case):
    """(name, model) of each format that the implementation takes and that can hold the weights."""
    names = [name for name in subject.implementation.formats() if name in formats_of(case.config)]
    if not names:
        raise Unsupported(f"no format it takes can hold the weights of {case.spec}")
    for name in names:
        tensors = to_format(name, case.config, case.weights())
        given = {own: subject.on_device(tensor) for own, tensor in tensors.items()}
        yield name, subject.implementation.build_from(name, case.config, given)


def exported(model):
    """What a model exports; one tensor under two names is a tied unembedding, which has no canonical name."""
    tensors = dict(model.state_dict())
    if EMBEDDING not in tensors:
        raise Unsupported(f"its state_dict has other names than the canonical ones: there is no {EMBEDDING}")
    if HEAD in tensors and tensors[HEAD].data_ptr() == tensors[EMBEDDING].data_ptr():
        del tensors[HEAD]
    return {name: tensor.detach().cpu() for name, tensor in tensors.items()}


def difference(name, given, back):
    """How an exported tensor differs from the one that was given; "" where every bit is the same."""
    if (back.dtype, back.shape) != (given.dtype, given.shape):
        return f"{name} is {back.dtype} {list(back.shape)}, was {given.dtype} {list(given.shape)}"
    bits = [t.contiguous().view(torch.uint8).view(-1, t.itemsize) for t in (given, back)]
    changed = (bits[0] != bits[1]).any(dim=-1).sum()
    return f"{name} differs in {changed} of {given.numel()} elements" if changed else ""


def same_bits(way, model, case):
    """The verdict on what a model exports: the canonical weights that it was made from, and no others."""
    given, back = case.weights(), exported(model)
    problems = [f"lacks {name}" for name in given if name not in back]
    problems += [f"has {name}, which was not given" for name in back if name not in given]
    problems += filter(None, (difference(n, given[n], back[n]) for n in given if n in back))
    more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
    return exact(not problems, "bits", f"built {way}, the export {'; '.join(problems[:1])}{more}")


@check("WEIGHT-7", cases=format_cases("loud", "float32"))
def test_a_model_loaded_through_each_format_gives_the_same_logits(subject, case):
    want, verdicts = asks.logits(subject, case), []
    for name, model in through_each_format(subject, case):
        verdict = agree(asks.logits_of(model, subject, case), want, answers.logits, case)
        reason = f"built from {name} tensors {verdict.reason}".rstrip()
        verdicts.append(verdict if verdict.passed else replace(verdict, reason=reason))
    return verdicts


@check("WEIGHT-7", cases=format_cases("quiet", "float32", "bfloat16", "float16"))
def test_export_gives_back_the_bits_that_were_imported(subject, case):
    """Quiet weights: some are so small that float16 could not hold them, in bfloat16 neither."""
    return same_bits("from canonical weights", subject.model(case), case)


@check("WEIGHT-7", cases=format_cases("quiet", "float32", "bfloat16", "float16"))
def test_export_gives_back_the_bits_that_were_imported_through_each_format(subject, case):
    models = through_each_format(subject, case)
    return [same_bits(f"from {name} tensors", model, case) for name, model in models]
