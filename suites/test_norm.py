"""NORM: RMSNorm."""

from conformance import NormCase, answers, check, exact, judge, strategies

WIDTHS = (48, 1, 129, 576)


def norm_cases(selection):
    """Rows of different size first: one loud row hides a fault on the others."""
    for dtype in selection.dtypes:
        yield NormCase(dtype=dtype, pattern="rows", n=48)
        yield NormCase(dtype=dtype, pattern="outlier", n=576)
        yield from (NormCase(dtype=dtype, n=n, rows=rows) for n in WIDTHS for rows in (1, 3))
        yield NormCase(dtype=dtype, pattern="ties", eps=1e-6)
        yield NormCase(dtype=dtype, pattern="denormal")


def normed(subject, case):
    x, weight = (subject.on_device(t) for t in case.inputs())
    return subject.implementation.rms_norm(x, weight, case.eps)


@check("NORM-1", cases=norm_cases, draws=strategies.norms)
def test_divides_each_row_by_its_root_mean_square_and_applies_the_weight(subject, case):
    return judge(normed(subject, case), answers.rms_norm, case)


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


def constant_cases(selection):
    return [
        NormCase(dtype=d, pattern="constant", scale=s, n=n)
        for d in selection.dtypes
        for n in (3, 48)
        for s in (2.0, -2.0)
    ]


@check("NORM-2", cases=constant_cases)
def test_does_not_centre(subject, case):
    return judge(normed(subject, case), answers.rms_norm, case)


def eps_cases(selection):
    """Rows of rms 1e-3 and 1e-4, where 1e-5 and 1e-6 are far apart; zero rows; a large eps."""
    for dtype in selection.dtypes:
        for eps in (1e-5, 1e-6, 0.1):
            yield from (NormCase(dtype=dtype, eps=eps, scale=s) for s in (1e-3, 1e-4))
            yield NormCase(dtype=dtype, eps=eps, pattern="zero")


@check("NORM-3", cases=eps_cases, draws=strategies.norms)
def test_eps_is_the_configs_and_stands_inside_the_root(subject, case):
    return judge(normed(subject, case), answers.rms_norm, case)


def sixteen_bit_cases(_selection):
    """Magnitude 300 squares to more than float16 holds; 1e-3 to less; long rows outgrow a 16-bit sum."""
    for dtype in ("float16", "bfloat16"):
        yield NormCase(dtype=dtype, scale=300.0, n=64)
        yield from (NormCase(dtype=dtype, n=n, pattern=p) for n in (512, 4096) for p in ("noise", "constant"))
        yield NormCase(dtype=dtype, scale=1e-3, n=512)


@check("NORM-4", cases=sixteen_bit_cases)
def test_the_statistic_is_float32_in_16_bit(subject, case):
    return judge(normed(subject, case), answers.rms_norm, case)


def divisor_cases(selection):
    """At n = 8 a divisor of n − 1 is 7% off; a lone element anywhere must count."""
    for dtype in selection.dtypes:
        yield NormCase(dtype=dtype, n=8)
        yield NormCase(dtype=dtype, n=8, rows=64, pattern="one-hot")
        yield NormCase(dtype=dtype, n=33, rows=128, pattern="one-hot")


@check("NORM-7", cases=divisor_cases)
def test_the_divisor_is_n_and_every_element_takes_part(subject, case):
    return judge(normed(subject, case), answers.rms_norm, case)
