"""NORM: RMSNorm."""

from dataclasses import replace

from conformance import (
    ModelCase,
    NormCase,
    agree,
    answers,
    asks,
    check,
    exact,
    judge,
    norm_convention,
    strategies,
    without_memory,
)

WIDTHS = (48, 1, 2, 31, 33, 129, 576, 4097)
# Sequences and layout: [B, T, n], and views.
LAYOUTS = ((3, "contiguous"), (3, "transposed"), (0, "sliced"), (0, "transposed"))
SIXTEEN_BIT = ("float16", "bfloat16")


def norm_cases(selection):
    """Rows of different size first: one loud row hides a fault on the others."""
    for dtype in selection.dtypes:
        yield NormCase(dtype=dtype, pattern="rows", n=48)
        yield NormCase(dtype=dtype, pattern="outlier", n=576)
        yield from (NormCase(dtype=dtype, n=n, rows=rows) for n in WIDTHS for rows in (1, 3))
        yield NormCase(dtype=dtype, pattern="ties", eps=1e-6)
        yield NormCase(dtype=dtype, pattern="denormal")
        yield from (
            NormCase(dtype=dtype, pattern="rows", sequences=n, layout=layout) for n, layout in LAYOUTS
        )


@check("NORM-1", cases=norm_cases, draws=strategies.norms)
def test_divides_each_row_by_its_root_mean_square_and_applies_the_weight(subject, case):
    return judge(asks.rms_norm(subject, case), answers.rms_norm, case)


def dtype_cases(selection):
    return [NormCase(dtype=dtype, pattern="rows") for dtype in selection.dtypes]


def row_cases(selection):
    return [NormCase(dtype=d, rows=4, pattern=p) for d in selection.dtypes for p in ("rows", "outlier")]


@check("NORM-1", cases=row_cases)
def test_rows_do_not_influence_one_another(subject, case):
    x, weight = (subject.on_device(t) for t in case.inputs())
    alone = subject.implementation.rms_norm(x[:1], weight, case.eps)
    together = subject.implementation.rms_norm(x, weight, case.eps)
    verdicts = [judge(together, answers.rms_norm, case)]
    other = NormCase(dtype=case.dtype, rows=case.rows, pattern=case.pattern, seed=case.seed + 1)
    changed = x.clone()
    changed[1:] = subject.on_device(other.inputs()[0][1:])
    kept = subject.implementation.rms_norm(changed, weight, case.eps)[:1]
    same = kept.shape == alone.shape and bool((kept == alone).all() and (together[:1] == alone).all())
    return [*verdicts, exact(same, "row alone, to the bit", "row 0 changes with the rows beside it", (0,))]


@check("NORM-1", cases=dtype_cases)
def test_the_norm_has_no_memory(subject, case):
    """The same case first, and last, after others of its shape and weight, wider, and of another dtype."""
    return without_memory(
        lambda c: asks.rms_norm(subject, c),
        answers.rms_norm,
        case,
        replace(case, dtype="float32" if case.dtype == "bfloat16" else "bfloat16"),
        replace(case, seed=case.seed + 1),
        replace(case, n=129, rows=9),
        replace(case, eps=0.1),
    )


def constant_cases(selection):
    return [
        NormCase(dtype=d, pattern="constant", scale=s, n=n)
        for d in selection.dtypes
        for n in (3, 48)
        for s in (2.0, -2.0)
    ]


@check("NORM-2", cases=constant_cases)
def test_does_not_centre(subject, case):
    return judge(asks.rms_norm(subject, case), answers.rms_norm, case)


def eps_cases(selection):
    """Rows of rms 1e-3 and 1e-4, where 1e-5 and 1e-6 are far apart; zero rows; a large eps."""
    for dtype in selection.dtypes:
        for eps in (1e-5, 1e-6, 0.1):
            yield from (NormCase(dtype=dtype, eps=eps, scale=s) for s in (1e-3, 1e-4))
            yield NormCase(dtype=dtype, eps=eps, pattern="zero")


@check("NORM-3", cases=eps_cases, draws=strategies.norms)
def test_eps_is_the_configs_and_stands_inside_the_root(subject, case):
    return judge(asks.rms_norm(subject, case), answers.rms_norm, case)


def scaled_cases(selection):
    return [
        NormCase(dtype=d, eps=eps, scale=s) for d in selection.dtypes for eps, s in ((0.1, 1.0), (1e-5, 4e-3))
    ]


@check("NORM-3", cases=scaled_cases)
def test_twice_the_input_and_four_times_eps_give_the_same(subject, case):
    """A law without an oracle: with eps inside, sqrt(mean((2x)²) + 4·eps) = 2·sqrt(mean(x²) + eps)."""
    x, weight = (subject.on_device(t) for t in case.inputs())
    here = subject.implementation.rms_norm(x, weight, case.eps)
    scaled = subject.implementation.rms_norm(2 * x, weight, 4 * case.eps)
    return agree(scaled, here, answers.rms_norm, case)


def sixteen_bit_cases(_selection):
    """Magnitude 300 squares to more than float16 holds; 1e-3 to less; long rows outgrow a 16-bit sum."""
    for dtype in SIXTEEN_BIT:
        yield NormCase(dtype=dtype, scale=300.0, n=64)
        yield from (NormCase(dtype=dtype, n=n, pattern=p) for n in (512, 4096) for p in ("noise", "constant"))
        yield NormCase(dtype=dtype, scale=1e-3, n=512)


@check("NORM-4", cases=sixteen_bit_cases, draws=lambda s: strategies.norms(s, SIXTEEN_BIT))
def test_the_statistic_is_float32_in_16_bit(subject, case):
    return judge(asks.rms_norm(subject, case), answers.rms_norm, case)


def divisor_cases(selection):
    """At n = 8 a divisor of n − 1 is 7% off; a lone element anywhere must count."""
    for dtype in selection.dtypes:
        yield NormCase(dtype=dtype, n=8)
        yield NormCase(dtype=dtype, n=8, rows=64, pattern="one-hot")
        yield NormCase(dtype=dtype, n=33, rows=128, pattern="one-hot")


@check("NORM-7", cases=divisor_cases)
def test_the_divisor_is_n_and_every_element_takes_part(subject, case):
    return judge(asks.rms_norm(subject, case), answers.rms_norm, case)


@check("NORM-5", cases=dtype_cases, draws=strategies.norms)
def test_the_dtype_of_the_input_is_kept(subject, case):
    x, weight = (subject.on_device(t) for t in case.inputs())
    y = subject.implementation.rms_norm(x, weight, case.eps)
    verdict = exact(y.dtype == x.dtype, "dtype", f"norm of {x.dtype} with a weight of {x.dtype} is {y.dtype}")
    return replace(verdict, facts=with_a_float32_weight(subject, case) if x.dtype.itemsize == 2 else {})


def with_a_float32_weight(subject, case):
    """What is seen, and no verdict: to widen, to keep the dtype and to refuse are all in use."""
    x, weight = (subject.on_device(t) for t in case.inputs())
    try:
        seen = str(subject.implementation.rms_norm(x, weight.float(), case.eps).dtype)
    except Exception as error:  # noqa: BLE001 - a refusal is an answer
        seen = f"refused: {type(error).__name__}"
    return {f"norm of {case.dtype} with a float32 weight": seen.removeprefix("torch.")}


def convention_cases(_selection):
    """Many elements: by chance the two orders agree on a few."""
    return [NormCase(dtype=dtype, n=576, rows=9) for dtype in SIXTEEN_BIT]


@check("NORM-6", cases=convention_cases, draws=lambda s: strategies.norms(s, SIXTEEN_BIT))
def test_weight_and_cast_come_in_one_of_two_orders(subject, case):
    y = asks.rms_norm(subject, case)
    verdict = judge(y, answers.rms_norm, case)
    return replace(verdict, facts={"norm: order of weight and cast": norm_convention(y, case)})


def own_eps_cases(selection):
    """An eps that shows in every norm; one token, so that neither rotation nor mask nor scores matter."""
    for dtype in selection.dtypes:
        for variant, shape in selection.few():
            for regime in ("quiet", "loud"):
                yield ModelCase(
                    dtype=dtype,
                    variant=variant,
                    shape=shape,
                    regime=regime,
                    batch=7,
                    tokens=1,
                    but=(("rms_norm_eps", 0.1),),
                )


@check("NORM-9", cases=own_eps_cases)
def test_every_norm_has_its_own_weight_and_the_configs_eps(subject, case):
    return judge(asks.logits(subject, case), answers.logits, case)
