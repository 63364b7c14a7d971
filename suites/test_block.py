"""BLOCK: a layer as a whole, and every step of the model on the implementation's own input."""

from dataclasses import replace

from conformance import ModelCase, agree, answers, check, judge, judge_taps, strategies


def block_cases(selection):
    """Loud weights show what the branches are given, quiet ones what happens to the stream."""
    for dtype in selection.dtypes:
        for regime, shapes in (("loud", selection.smalls()), ("quiet", selection.few())):
            for variant, shape in shapes:
                yield ModelCase(
                    dtype=dtype, variant=variant, shape=shape, regime=regime, layer=1, batch=2, tokens=9
                )


@check("BLOCK-1", cases=block_cases, draws=strategies.models)
def test_a_layer_adds_attention_and_network_of_the_normed_stream_to_the_stream(subject, case):
    x, positions = (subject.on_device(t) for t in (case.hidden(), case.positions()))
    return judge(subject.model(case).block(x, positions, case.layer), answers.block, case)


SQUARE = (("head_dim", 8),)  # H·d = D: an output projection that is transposed still fits


def arrow_cases(selection):
    """Every frequency rule in float32; the other arrows do not depend on it."""
    for dtype, variant, shape in selection.models():
        yield ModelCase(dtype=dtype, variant=variant, shape=shape, batch=2, tokens=17)
    for dtype in selection.dtypes:
        for variant, shape in selection.few():
            yield ModelCase(
                dtype=dtype, variant=variant, shape=shape, regime="quiet", batch=2, tokens=9, but=SQUARE
            )


@check("BLOCK-2", cases=arrow_cases, draws=strategies.models)
def test_every_arrow_is_within_budget_on_its_own_input(subject, case):
    model, tokens = subject.model(case), subject.on_device(case.token_ids())
    taps, logits = model.taps(tokens), model.logits(tokens)
    verdicts = [judge_taps({**taps, "logits": taps.get("logits", logits)}, case)]
    if "logits" in taps:  # taps are of this model, and not of another that is right
        tied = agree(taps["logits"], logits, answers.logits, case)
        reason = "" if tied.passed else f"the tap logits is not what the model gives; {tied.reason}"
        verdicts.append(replace(tied, measure=f"logits as a tap, {tied.measure}", reason=reason))
    return verdicts
