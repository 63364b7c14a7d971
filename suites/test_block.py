"""BLOCK: a layer as a whole, and every step of the model on the implementation's own input."""

from conformance import ModelCase, answers, check, judge, judge_taps, strategies


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
    return judge_taps(subject.model(case).taps(subject.on_device(case.token_ids())), case)
