"""MLP: SiLU, and the gated feed-forward network."""

from dataclasses import replace

import torch

from conformance import (
    EXACT_ORACLE,
    GateCase,
    ModelCase,
    PeakCase,
    WidthCase,
    answers,
    asks,
    check,
    exact,
    judge,
    strategies,
    without_memory,
)


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


# Sequences and layout: [B, T, F], and views.
LAYOUTS = ((3, "contiguous"), (3, "transposed"), (0, "sliced"), (0, "transposed"))


def gate_cases(selection):
    for dtype in selection.dtypes:
        yield from (GateCase(dtype=dtype, scale=s, pattern=p) for s in (4.0, 1.0) for p in ("noise", "rows"))
        yield from (GateCase(dtype=dtype, width=w, rows=1) for w in (1, 2, 31, 33, 127, 4097))
        yield from (GateCase(dtype=dtype, sequences=n, layout=layout) for n, layout in LAYOUTS)


@check("MLP-2", cases=gate_cases, draws=strategies.gates)
def test_silu_acts_on_the_gate_and_multiplies_the_up(subject, case):
    return judge(asks.silu_mul(subject, case), answers.silu_mul, case)


def few_gates(selection):
    return [GateCase(dtype=dtype, width=33) for dtype in selection.dtypes]


@check("MLP-2", cases=few_gates)
def test_gating_has_no_memory(subject, case):
    """The same case first, and last, after others of the same shape, larger, and of another dtype."""
    return without_memory(
        lambda c: asks.silu_mul(subject, c),
        answers.silu_mul,
        case,
        replace(case, dtype="float32" if case.dtype == "bfloat16" else "bfloat16"),
        replace(case, seed=case.seed + 1),
        replace(case, width=129, rows=9),
    )


def large_cases(selection):
    """Products just below where float16 ends, and beyond it: there infinity is right, and no number is."""
    for dtype in selection.dtypes:
        loud = {"dtype": dtype, "pattern": "constant", "up_pattern": "constant", "rows": 2}
        yield from (GateCase(**loud, scale=s, up_scale=u) for s, u in ((255.0, 256.0), (16.0, -4092.0)))
        yield GateCase(dtype=dtype, pattern="sweep", scale=200.0, up_scale=60.0, width=257)
        beyond = 300.0 if dtype == "float16" else 1e20
        yield GateCase(**loud, scale=beyond, up_scale=-beyond)
        yield GateCase(dtype=dtype, pattern="sweep", scale=2 * beyond, up_scale=beyond, width=257)


@check("MLP-4", cases=large_cases)
def test_large_gates_are_right_as_far_as_the_dtype_reaches_and_no_further(subject, case):
    y = asks.silu_mul(subject, case)
    verdict = judge(y, answers.silu_mul, case)
    return [verdict, overflow(y.cpu(), case)] if verdict.passed else verdict


def overflow(y, case):
    """Where the product is further beyond the dtype than rounding reaches, its largest number hides it."""
    beyond = answers.silu_mul(case, EXACT_ORACLE).abs() > 1.01 * torch.finfo(case.torch_dtype).max
    finite = (beyond & y.isfinite()).nonzero().tolist()
    at = tuple(finite[0]) if finite else ()
    reason = f"{float(y[at]):.6g} where the product is more than {case.dtype} can hold" if finite else ""
    return exact(not finite, "overflow", reason, at)


def peak_cases(selection):
    """In float32 beyond what float16 holds; fewer tokens than a matrix kernel wants, and as many."""
    for dtype in selection.dtypes:
        for variant, shape in selection.few():
            for tokens in (21, 64):
                yield PeakCase(
                    dtype=dtype,
                    variant=variant,
                    shape=shape,
                    regime="quiet",
                    batch=1,
                    tokens=tokens,
                    peak=6e4 if dtype == "float16" else 1e6,
                )


@check("MLP-4", cases=peak_cases)
def test_a_network_with_large_gates_is_right(subject, case):
    return judge(asks.mlp(subject, case), answers.mlp, case)


WIDE = (("intermediate_size", 4096), ("num_hidden_layers", 1))


def wide_cases(selection):
    """Sums so long that they show a 16-bit accumulator."""
    for dtype in selection.dtypes:
        for variant, shape in selection.few():
            yield ModelCase(dtype=dtype, variant=variant, shape=shape, batch=1, tokens=5, but=WIDE)


@check("MLP-2", cases=wide_cases)
def test_long_sums_are_taken_in_float32(subject, case):
    return judge(asks.mlp(subject, case), answers.mlp, case)


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
