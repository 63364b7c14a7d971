"""MLP: SiLU, and the gated feed-forward network."""

from conformance import GateCase, ModelCase, answers, check, judge, strategies


def gated(subject, case):
    gate, up = (subject.on_device(t) for t in case.inputs())
    return subject.implementation.silu_mul(gate, up)


def silu_cases(selection):
    """z swept from −s to s against up = 1: the minimum, the linear end, and the end that underflows."""
    for dtype in selection.dtypes:
        yield from (
            GateCase(dtype=dtype, pattern="sweep", up_pattern="constant", scale=s, width=1025, rows=1)
            for s in (2.0, 20.0, 80.0, 1e4, 1e-4)
        )


@check("MLP-1", cases=silu_cases)
def test_silu_is_z_times_sigmoid_from_end_to_end(subject, case):
    return judge(gated(subject, case), answers.silu_mul, case)


def gate_cases(selection):
    for dtype in selection.dtypes:
        yield from (GateCase(dtype=dtype, scale=s, pattern=p) for s in (4.0, 1.0) for p in ("noise", "rows"))
        yield from (GateCase(dtype=dtype, width=w, rows=1) for w in (1, 33))


@check("MLP-2", cases=gate_cases, draws=strategies.gates)
def test_silu_acts_on_the_gate_and_multiplies_the_up(subject, case):
    return judge(gated(subject, case), answers.silu_mul, case)


def mlp_cases(selection):
    for dtype in selection.dtypes:
        for variant, shape in selection.smalls():
            yield ModelCase(dtype=dtype, variant=variant, shape=shape, layer=1, tokens=9)


@check("MLP-2", cases=mlp_cases)
def test_the_network_is_down_of_act_of_gate_times_up(subject, case):
    y = subject.model(case).mlp(subject.on_device(case.hidden()), case.layer)
    return judge(y, answers.mlp, case)
