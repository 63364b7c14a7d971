"""WEIGHT: loading refuses what does not fit, and says so."""

import torch

from conformance import ModelCase, Unsupported, check, exact

# One that is fused by some, one that is not, a vector, and the one that may be tied.
SUBJECTS = (
    "model.layers.1.self_attn.k_proj.weight",
    "model.layers.0.mlp.up_proj.weight",
    "model.norm.weight",
)
HEAD = "lm_head.weight"


def load_cases(selection):
    return [ModelCase(dtype="float32", variant=v, shape=s) for v, s in selection.smalls() if s == "gqa"]


def refused(subject, case, weights, what, *wanted):
    """The verdict on building with weights that do not fit: a message with every wanted word."""
    given = {name: subject.on_device(w) for name, w in weights.items()}
    try:
        subject.implementation.build(case.config, given)
    except Unsupported:
        raise
    except Exception as error:  # noqa: BLE001 - any refusal counts, if its message helps
        lacking = [" or ".join(words) for words in wanted if not any(w in str(error) for w in words)]
        reason = f"{what}: refused, but the message lacks {', '.join(lacking)}"
        return exact(not lacking, "refusal", reason)
    return exact(False, "refusal", f"{what}: nothing was raised")


def names(subject, tensor):
    """What a message may call a tensor."""
    return (tensor, subject.implementation.own_name(tensor))


def subjects(case):
    return SUBJECTS if case.config.tie_word_embeddings else (*SUBJECTS, HEAD)


@check("WEIGHT-1", cases=load_cases)
def test_a_misshapen_tensor_is_refused_by_name_and_shapes(subject, case):
    verdicts = []
    for tensor in subjects(case):
        right = case.weights()[tensor]
        wrong = right[..., :1]
        shapes = [(str(list(t.shape))[1:-1],) for t in (wrong, right)]
        weights, what = {**case.weights(), tensor: wrong}, f"{tensor} given as {list(wrong.shape)}"
        verdicts.append(refused(subject, case, weights, what, names(subject, tensor), *shapes))
    return verdicts


@check("WEIGHT-1", cases=load_cases)
def test_rows_missing_in_one_tensor_cannot_be_made_up_by_another(subject, case):
    """q too short and k too long by the same rows: a fused qkv has the right size, and is wrong."""
    q, k = (f"model.layers.0.self_attn.{part}_proj.weight" for part in "qk")
    weights, rows = case.weights(), case.config.head_dim
    wrong = {q: weights[q][:-rows], k: torch.cat([weights[k], weights[k][:rows]])}
    what = f"{q} {rows} rows short and {k} as many long"
    return refused(subject, case, {**weights, **wrong}, what, (*names(subject, q), *names(subject, k)))


@check("WEIGHT-2", cases=load_cases)
def test_missing_and_unexpected_names_are_refused_by_name(subject, case):
    verdicts = []
    for tensor in subjects(case):
        weights = {n: w for n, w in case.weights().items() if n != tensor}
        verdicts.append(refused(subject, case, weights, f"without {tensor}", names(subject, tensor)))
    extra = "model.layers.0.self_attn.unexpected_proj.weight"
    weights = {**case.weights(), extra: case.weights()[SUBJECTS[0]]}
    return [*verdicts, refused(subject, case, weights, f"with {extra}", (extra, "unexpected_proj"))]
