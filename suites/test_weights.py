"""WEIGHT: loading refuses what does not fit, mixes nothing up, and adds and rounds nothing."""

from dataclasses import replace

import torch

from conformance import (
    ModelCase,
    Unsupported,
    Verdict,
    agree,
    answers,
    asks,
    check,
    exact,
    holding,
    judge,
    judge_exchanges,
    memory_of,
)

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
        lacking = [" or ".join(set(words)) for words in wanted if not any(w in str(error) for w in words)]
        reason = (
            f"{what}: refused, but the message does not say {', nor '.join(lacking)}: {str(error)[:300]!r}"
        )
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


BIASED = (("attention_bias", True), ("mlp_bias", True))


def few_cases(selection, **fields):
    return [ModelCase(variant=v, shape=s, batch=1, tokens=9, **fields) for v, s in selection.few()]


def tensor_cases(selection):
    """Untied, tied, and with biases, of which the others have none."""
    return [*few_cases(selection), *few_cases(selection, but=BIASED)[:1]]


@check("WEIGHT-3", cases=tensor_cases)
def test_every_tensor_changes_the_logits(subject, case):
    """Each in turn is taken from another seed; where there are biases, they alone."""
    before, others = asks.logits(subject, case), replace(case, seed=case.seed + 1).weights()
    change = {}
    for name in (n for n in others if not case.but or n.endswith(".bias")):
        weights = {n: subject.on_device(w) for n, w in {**case.weights(), name: others[name]}.items()}
        model = subject.implementation.build(case.config, weights)
        verdict = agree(asks.logits_of(model, subject, case), before, answers.logits, case)
        if verdict.headroom is None:  # not finite, or of another shape: no change that could be measured
            return verdict
        change[name] = verdict.headroom
    idle = [name for name in change if change[name] <= 1]
    least = min(change, key=change.get)
    return Verdict(
        passed=not idle,
        measure="tensors without effect",
        reason=f"the logits do not depend on {', '.join(idle)}" if idle else "",
        facts={"least change of logits": f"{change[least]:.3g} budgets, by {least}"},
    )


@check("WEIGHT-4", cases=tensor_cases)
def test_no_mix_up_of_tensors_of_one_shape_explains_the_logits(subject, case):
    return judge_exchanges(asks.logits(subject, case), case)


def parameters(subject, case):
    return [held for held in subject.model(case).held() if held.kind == "parameter"]


@check("WEIGHT-5", cases=load_cases)
def test_tied_embeddings_are_one_parameter_and_untied_ones_are_two(subject, case):
    config, held = case.config, parameters(subject, case)
    sides = {config.vocab_size, config.hidden_size}
    matrices = [h for h in held if h.tensor.ndim == 2 and set(h.tensor.shape) == sides]
    got, expected = len(holding.storages(h.tensor for h in matrices)), 1 if config.tie_word_embeddings else 2
    found = ", ".join(h.name for h in matrices) or "none"
    reason = (
        f"parameters of {config.vocab_size} x {config.hidden_size} stand in {got} places in memory, expected "
        f"{expected} where tie_word_embeddings is {config.tie_word_embeddings}: {found}"
    )
    return exact(got == expected, "storages", reason)


@check("WEIGHT-6", cases=load_cases)
def test_there_are_as_many_parameters_as_the_config_says(subject, case):
    config = case.config
    got = holding.distinct_elements(h.tensor for h in parameters(subject, case))
    expected = memory_of(config).parameters
    one = " (an embedding)" if got - expected == config.vocab_size * config.hidden_size else ""
    reason = f"{got:,} parameters, expected {expected:,}: {got - expected:+,}{one}"
    return replace(exact(got == expected, "parameters", reason), facts={"parameters, by storage": f"{got:,}"})


def dtype_cases(selection):
    return [replace(case, dtype=dtype) for dtype in selection.dtypes for case in load_cases(selection)]


@check("WEIGHT-8", cases=dtype_cases)
def test_every_parameter_has_the_dtype_of_the_weights(subject, case):
    held = [h for h in parameters(subject, case) if h.tensor.is_floating_point()]
    others = [f"{h.name} is {h.tensor.dtype}" for h in held if h.tensor.dtype != case.torch_dtype]
    return exact(not others, "dtypes", f"{', '.join(others[:4])}, expected {case.torch_dtype}")


def value_cases(selection):
    return [case for dtype in selection.dtypes for case in few_cases(selection, dtype=dtype)]


@check("WEIGHT-8", cases=value_cases)
def test_no_weight_was_rounded_on_the_way_in(subject, case):
    held = [h.tensor for h in parameters(subject, case) if h.tensor.is_floating_point()]
    narrow = holding.rounded_through(held, case.weights())
    return exact(narrow is None, "values", f"the values are those of weights rounded to {narrow} on the way")


# One number of the config after the other is another than the small configs have: a default would show. The
# rows of 12 and 4 heads also divide by the usual 6 and 2, so that a wrong count goes unnoticed on the way.
SIZES = (
    (("num_hidden_layers", 3),),
    (("num_hidden_layers", 5),),
    (("num_key_value_heads", 1),),
    (("num_attention_heads", 9), ("num_key_value_heads", 3)),
    (("num_hidden_layers", 1),),
    (("num_attention_heads", 12), ("num_key_value_heads", 4)),
    (("num_attention_heads", 10), ("num_key_value_heads", 5)),
    (("head_dim", 24),),
    (("hidden_size", 72),),
    (("intermediate_size", 112),),
    (("vocab_size", 197),),
)


def size_cases(selection):
    for sizes in SIZES:
        yield from few_cases(selection, but=sizes)


@check("WEIGHT-9", cases=size_cases)
def test_sizes_come_from_the_config_at_hand(subject, case):
    return judge(asks.logits(subject, case), answers.logits, case)
