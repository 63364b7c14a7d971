"""LOGITS: the whole function, from tokens to logits."""

from dataclasses import replace

import torch

from conformance import ModelCase, agree, answers, asks, check, judge, judge_greedy, strategies

SIXTEEN_BIT = ("bfloat16", "float16")


def model_cases(*dtypes):
    """Loud first: quiet weights hide rotation, masks and scale; loud ones hide eps."""

    def cases(selection):
        for dtype in (d for d in dtypes if d in selection.dtypes):
            for variant, shape in selection.smalls():
                yield ModelCase(dtype=dtype, variant=variant, shape=shape, regime="loud")
                yield ModelCase(dtype=dtype, variant=variant, shape=shape, regime="quiet", tokens=17)
                yield ModelCase(
                    dtype=dtype, variant=variant, shape=shape, regime="outlier", tokens=33, batch=1
                )

    return cases


def judge_logits(subject, case):
    return judge(asks.logits(subject, case), answers.logits, case)


@check("LOGITS-1", cases=model_cases("float32"), draws=lambda s: strategies.models(s, only=("float32",)))
def test_full_logits_in_float32(subject, case):
    return judge_logits(subject, case)


@check("LOGITS-2", cases=model_cases(*SIXTEEN_BIT), draws=lambda s: strategies.models(s, only=SIXTEEN_BIT))
def test_full_logits_in_16_bit(subject, case):
    return judge_logits(subject, case)


def greedy_cases(selection):
    """Many short sequences: errors grow with the length, and in bfloat16 they hide most choices."""
    for dtype, variant, shape in selection.models():
        yield ModelCase(dtype=dtype, variant=variant, shape=shape, batch=16, tokens=5)


@check("LOGITS-4", cases=greedy_cases)
def test_the_greedy_token_is_the_oracles_wherever_its_two_best_are_apart(subject, case):
    return judge_greedy(asks.logits(subject, case), case)


def loss_cases(selection):
    """A loss is float32, and the frequency rule does not matter to it."""
    for variant, shape in selection.few():
        yield ModelCase(variant=variant, shape=shape, tokens=33)
        yield ModelCase(variant=variant, shape=shape, tokens=9, regime="quiet")


def losses(subject, case):
    """Of a batch and of single rows, of many tokens and of two."""
    model, tokens = subject.model(case), subject.on_device(case.token_ids())
    return torch.stack([model.loss(part) for part in answers.loss_parts(tokens)])


@check("LOGITS-5", cases=loss_cases)
def test_the_loss_is_the_mean_over_all_tokens_given_those_before_them(subject, case):
    return judge(losses(subject, case), answers.losses, case)


@check("LOGITS-5", cases=loss_cases)
def test_the_loss_of_a_batch_is_the_mean_of_its_rows(subject, case):
    """A law that needs no oracle, for the rows are of one length."""
    given = losses(subject, case)
    by_rows = torch.cat([torch.cat([part[1:].mean()[None], part[1:]]) for part in given.chunk(2)])
    return agree(given, by_rows, answers.losses, case)


def end_cases(selection):
    return [
        ModelCase(dtype=dtype, variant=variant, shape=shape, tokens=17)
        for dtype in selection.dtypes
        for variant, shape in selection.few()
    ]


@check("LOGITS-7", cases=end_cases, draws=strategies.models)
def test_doubling_the_weight_of_the_final_norm_doubles_the_logits(subject, case):
    """A law that needs no oracle. To the bit, as a rule: tiny numbers of float16 alone are rounded anew."""
    name = "model.norm.weight"
    weights = {**case.weights(), name: 2 * case.weights()[name]}
    given = {n: subject.on_device(w) for n, w in weights.items()}
    doubled = asks.logits_of(subject.implementation.build(case.config, given), subject, case)
    once = asks.logits(subject, case)
    verdict = agree(doubled / 2, once, answers.logits, case)
    kept = "yes" if torch.equal(doubled, 2 * once) else "no"
    return replace(verdict, facts={"logits doubled to the bit": kept})
