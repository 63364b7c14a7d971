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


def refusal(subject, case, weights, *wanted):
    """Whether building fails with a message that names the tensor and holds every other wanted word."""
    implementation = subject.implementation
    try:
        implementation.build(case.config, {name: subject.on_device(w) for name, w in weights.items()})
    except Unsupported:
        raise
    except Exception as error:  # noqa: BLE001 - any refusal counts, if its message helps
        return [" or ".join(words) for words in wanted if not any(w in str(error) for w in words)]
    return ["(nothing was raised)"]


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
        lacking = refusal(subject, case, {**case.weights(), tensor: wrong}, names(subject, tensor), *shapes)
        verdicts.append(
            exact(
                not lacking, "refusal", f"{tensor} given as {list(wrong.shape)}, the message lacks {lacking}"
            )
        )
    return verdicts


@check("WEIGHT-1", cases=load_cases)
def test_rows_missing_in_one_tensor_cannot_be_made_up_by_another(subject, case):
    """q too short and k too long by the same rows: a fused qkv has the right size, and is wrong."""
    q, k = (f"model.layers.0.self_attn.{part}_proj.weight" for part in "qk")
    weights = case.weights()
    rows = case.config.head_dim
    wrong = {q: weights[q][:-rows], k: torch.cat([weights[k], weights[k][:rows]])}
    lacking = refusal(subject, case, {**weights, **wrong}, (*names(subject, q), *names(subject, k)))
    return exact(
        not lacking, "refusal", f"{q} {rows} rows short, {k} as many long: the message lacks {lacking}"
    )


@check("WEIGHT-2", cases=load_cases)
def test_missing_and_unexpected_names_are_refused_by_name(subject, case):
    verdicts = []
    for tensor in subjects(case):
        weights = {n: w for n, w in case.weights().items() if n != tensor}
        lacking = refusal(subject, case, weights, names(subject, tensor))
        verdicts.append(exact(not lacking, "refusal", f"without {tensor}, the message lacks {lacking}"))
    extra = "model.layers.0.self_attn.unexpected_proj.weight"
    lacking = refusal(
        subject, case, {**case.weights(), extra: case.weights()[SUBJECTS[0]]}, (extra, "unexpected_proj")
    )
    verdicts.append(exact(not lacking, "refusal", f"with {extra}, the message lacks {lacking}"))
    return verdicts
