"""MLP: SiLU, and the gated feed-forward network."""

from conformance import GateCase, ModelCase, WidthCase, answers, asks, check, exact, judge, strategies


def silu_cases(selection):
    """z swept from −s to s against up = 1: the minimum, the linear end, and the end that underflows."""
    for dtype in selection.dtypes:
        yield from (
            GateCase(dtype=dtype, pattern="sweep", up_pattern="constant", scale=s, width=1025, rows=1)
            for s in (2.0, 20.0, 80.0, 1e4, 1e-4)
        )


@check("MLP-1", cases=silu_cases)
def test_silu_is_z_times_sigmoid_from_end_to_end(subject, case):
    return judge(asks.silu_mul(subject, case), answers.silu_mul, case)


def gate_cases(selection):
    for dtype in selection.dtypes:
        yield from (GateCase(dtype=dtype, scale=s, pattern=p) for s in (4.0, 1.0) for p in ("noise", "rows"))
        yield from (GateCase(dtype=dtype, width=w, rows=1) for w in (1, 33))


@check("MLP-2", cases=gate_cases, draws=strategies.gates)
def test_silu_acts_on_the_gate_and_multiplies_the_up(subject, case):
    return judge(asks.silu_mul(subject, case), answers.silu_mul, case)


def mlp_cases(selection):
    for dtype in selection.dtypes:
        for variant, shape in selection.smalls():
            yield ModelCase(dtype=dtype, variant=variant, shape=shape, layer=1, tokens=9)


@check("MLP-2", cases=mlp_cases, draws=strategies.models)
def test_the_network_is_down_of_act_of_gate_times_up(subject, case):
    return judge(asks.mlp(subject, case), answers.mlp, case)


def option_cases(*options):
    """One token on loud weights: neither rotation nor mask nor scores matter."""

    def cases(selection):
        for dtype in selection.dtypes:
            for variant, shape in selection.few():
                for but in options:
                    yield ModelCase(dtype=dtype, variant=variant, shape=shape, batch=9, tokens=1, but=but)

    return cases


ACTIVATIONS = [(("hidden_act", kind),) for kind in ("gelu", "gelu_pytorch_tanh", "silu")]


def drawn(*options):
    return lambda selection: strategies.models(selection, tokens=(1, 1), batch=(1, 9), but=options)


@check("MLP-3", cases=option_cases(*ACTIVATIONS), draws=drawn(*ACTIVATIONS))
def test_the_activation_is_the_configs(subject, case):
    return judge(asks.logits(subject, case), answers.logits, case)


BIASED = (("mlp_bias", True),)


@check("MLP-5", cases=option_cases(BIASED), draws=drawn(BIASED))
def test_every_projection_adds_its_bias(subject, case):
    return judge(asks.logits(subject, case), answers.logits, case)


@check("MLP-6", cases=option_cases((("intermediate_size", 100),), (("intermediate_size", 32),)))
def test_the_width_is_the_configs(subject, case):
    """Neither is 8/3 of the hidden size, rounded or not."""
    return judge(asks.logits(subject, case), answers.logits, case)


# (hidden size, multiple_of, ffn_dim_multiplier) → the width of the released model.
RELEASED = {
    (4096, 256, 1.0): 11008,  # Llama 2 7B
    (5120, 256, 1.0): 13824,  # Llama 2 13B
    (8192, 4096, 1.3): 28672,  # Llama 2 70B, Llama 3 70B
    (4096, 1024, 1.3): 14336,  # Llama 3 8B
    (16384, 4096, 1.2): 53248,  # Llama 3.1 405B
    (2048, 256, 1.5): 8192,  # Llama 3.2 1B
    (3072, 256, 1.0): 8192,  # Llama 3.2 3B
}


def released_cases(_selection):
    return [WidthCase(hidden_size=size, multiple_of=of, multiplier=by) for size, of, by in RELEASED]


@check("MLP-6", cases=released_cases)
def test_the_rule_of_params_json_gives_the_released_widths(subject, case):
    given = subject.implementation.ffn_width(case.hidden_size, case.multiple_of, case.multiplier)
    width = RELEASED[case.hidden_size, case.multiple_of, case.multiplier]
    return exact(given == width, "width", f"the rule gives {given}, the released model has {width}")
