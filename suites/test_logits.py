"""LOGITS: the whole function, from tokens to logits."""

from conformance import ModelCase, answers, check, judge, strategies

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
    logits = subject.model(case).logits(subject.on_device(case.token_ids()))
    return judge(logits, answers.logits, case)


@check("LOGITS-1", cases=model_cases("float32"), draws=lambda s: strategies.models(s, only=("float32",)))
def test_full_logits_in_float32(subject, case):
    return judge_logits(subject, case)


@check("LOGITS-2", cases=model_cases(*SIXTEEN_BIT), draws=lambda s: strategies.models(s, only=SIXTEEN_BIT))
def test_full_logits_in_16_bit(subject, case):
    return judge_logits(subject, case)
