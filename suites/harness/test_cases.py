"""Cases, variants and covering lists: specs that come back as they were, inputs that come again, power."""

import math
from dataclasses import fields, replace
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance import strategies, variants
from conformance.case_spec import parse_case
from conformance.cases import (
    PLACES,
    AttentionCase,
    Case,
    GateCase,
    HistoryCase,
    LongAttentionCase,
    ModelCase,
    NormCase,
    RotateCase,
    TableCase,
    WidthCase,
)
from conformance.checks import Selection, check
from conformance.inputs import DTYPES, PATTERNS, Layout, draw
from conformance.numerics.verdict import exact
from conformance.spec import requirement
from conformance.weights import REGIMES, expected_shapes, make_weights
from reference_impl import LlamaConfig, Rope
from reference_impl.rope import inv_freq

KINDS = list(Case.kinds.values())
VARIANTS = [v.name for v in Selection().variants]
CONTEXT = variants.SMALL_CONTEXT
LAYOUTS = get_args(Layout)
SQUARE = {"llama-3.2-3b", "tinyllama-1.1b"}  # for who knows no other widths
each_variant = pytest.mark.parametrize("variant", Selection().variants, ids=VARIANTS)
quickly = settings(max_examples=40, deadline=None, database=None, derandomize=True)


def any_value(field):
    """A strategy for a field of a case."""
    choices = {
        "dtype": DTYPES,
        "variant": VARIANTS,
        "shape": ["gqa", "real"],
        "pattern": PATTERNS,
        "up_pattern": PATTERNS,
        "v_pattern": PATTERNS,
        "regime": REGIMES,
        "places": PLACES,
        "layout": LAYOUTS,
        "but": [(), (("hidden_act", "gelu"),), (("rope.factor", 5.0), ("num_hidden_layers", 1))],
    }
    if field.name in choices:
        return st.sampled_from(list(choices[field.name]))
    if field.type == "float":
        return st.floats(1e-12, 1e6)
    return st.integers(1, 1000)


# Kinds whose fields hang together have tests of their own, on drawn cases.
FREE = [k for k in KINDS if k.__module__ in {"conformance.cases.model", "conformance.cases.ops"}]


@pytest.mark.parametrize("kind", FREE)
@quickly
@given(data=st.data())
def test_every_case_is_read_back_from_what_a_record_prints(kind, data):
    values = {f.name: data.draw(any_value(f), f.name) for f in fields(kind) if f.name != "chunks"}
    if kind is ModelCase:
        values["chunks"] = data.draw(strategies.partitions(values["tokens"] + 1))
        values["tokens"] += 1
    case = kind(**values)
    assert parse_case(repr(case)) == case
    assert parse_case(f"  {case!r} ") == case


@quickly
@given(data=st.data())
def test_every_drawn_case_is_read_back(data):
    selection = Selection()
    drawn = st.one_of(
        strategies.norms(selection),
        strategies.gates(selection),
        strategies.tables(selection, ("default", "linear", "llama3")),
        strategies.rotations(selection, st.integers(0, 4000)),
        strategies.attentions(selection),
        strategies.models(selection, chunked=True),
    )
    case = data.draw(drawn)
    assert parse_case(repr(case)) == case


@pytest.mark.parametrize(
    "text",
    [
        "",
        "NormCase",
        "NormCase(",
        "NormCase(8)",
        "NormCases(n=8)",
        "NormCase(width=8)",
        "NormCase(n=print(1))",
        "NormCase(n=__import__('os').getpid())",
        "NormCase(**{'n': 8})",
        "conformance.NormCase(n=8)",
        "(lambda: NormCase(n=8))()",
        "NormCase(n=8); NormCase(n=9)",
        "NormCase(n='8')",
        "NormCase(n=8.5)",
        "NormCase(n=-1)",
        "NormCase(n=True)",
        "NormCase(eps='small')",
        "NormCase(dtype='float8')",
        "NormCase(dtype=['float32'])",
        "NormCase(pattern='stripes')",
        "ModelCase(regime='shy')",
        "ModelCase(tokens=5, chunks=(2, 2))",
        "ModelCase(tokens=5, chunks=[2, 3])",
        "ModelCase(places='here')",
        "ModelCase(but='hidden_act')",
        "ModelCase(but=('hidden_act', 'gelu'))",
    ],
)
def test_text_that_is_no_case_is_refused_with_what_is_expected(text):
    with pytest.raises(ValueError, match="cannot read the case") as refused:
        parse_case(text)
    assert "expected what a record prints" in str(refused.value)
    assert all(kind.__name__ in str(refused.value) for kind in KINDS)


# Inputs.


def inputs(case):
    if isinstance(case, HistoryCase):
        return [torch.tensor(case.tokens((0, 0, 9)))]
    if isinstance(case, TableCase):
        return [case.positions()]
    if isinstance(case, ModelCase):
        return [case.token_ids(), case.hidden(), *case.weights().values()]
    return list(case.inputs())


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not WidthCase])
def test_inputs_come_again_and_change_with_the_seed(kind):
    one, again, other = (inputs(kind(seed=seed)) for seed in (7, 7, 8))
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    if kind is not TableCase:
        assert not any(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_weights_come_again_without_the_cache():
    config = ModelCase().config
    one, again = (make_weights(config, 7, "loud") for _ in range(2))
    assert all(torch.equal(one[name], again[name]) for name in one)


def test_inputs_are_the_same_function_of_the_seed_in_every_dtype():
    for kind in (NormCase, GateCase, RotateCase, AttentionCase):
        wide = inputs(kind())
        for dtype in DTYPES:
            narrow = inputs(kind(dtype=dtype))
            assert {t.dtype for t in narrow} == {DTYPES[dtype]}
            assert all(
                torch.allclose(a, b.float(), rtol=1e-2, atol=1e-2) for a, b in zip(wide, narrow, strict=True)
            )


def test_no_two_inputs_of_a_case_are_alike():
    q, k, v = AttentionCase(heads=2, kv_heads=2, gain=1.0).inputs()
    assert not torch.equal(q, k)
    assert not torch.equal(k, v)
    weights = ModelCase().weights()
    layers = [
        weights[f"model.layers.{i}.self_attn.{n}_proj.weight"] for i, n in ((0, "k"), (1, "k"), (0, "v"))
    ]
    assert not any(torch.equal(a, b) for a, b in ((layers[0], layers[1]), (layers[0], layers[2])))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pattern", [*PATTERNS, "zero"])
def test_patterns_are_finite_and_what_they_say(pattern, dtype):
    x = draw((50, 64), 1, pattern, 1.0, DTYPES[dtype])
    rms = x.double().pow(2).mean(-1).sqrt()
    assert x.dtype == DTYPES[dtype]
    assert bool(x.isfinite().all())
    said = {
        "noise": lambda: 0.5 < rms.min() < rms.max() < 2,
        "outlier": lambda: x[:, ::24].abs().mean() > 10 * x[:, 1:24].abs().mean(),
        "rows": lambda: rms.max() > 100 * rms.min(),
        "ties": lambda: len(x.unique()) < 12,
        "one-hot": lambda: (x != 0).sum(-1).eq(1).all() and (x.sum(-1) == 1).all(),
        "constant": (x == 1).all,
        "sweep": lambda: (x[:, 0] == -1).all() and (x[:, -1] == 1).all() and (x.diff() >= 0).all(),
        "zero": (x == 0).all,
        "denormal": lambda: rms.max() < torch.finfo(x.dtype).smallest_normal and rms.min() > 0,
    }
    assert bool(said[pattern]())


@pytest.mark.parametrize("regime", REGIMES)
def test_weights_have_power_in_every_regime(regime):
    weights = make_weights(ModelCase().config, 0, regime)
    norms = [w for n, w in weights.items() if n.endswith("norm.weight")]
    assert all(0.15 < float(w.std()) < 0.45 for w in norms)
    matrices = {n: w for n, w in weights.items() if w.ndim == 2}
    if regime == "quiet":
        assert all(0.015 < float(w.std()) < 0.025 for w in matrices.values())
    else:
        q, v = (matrices[f"model.layers.0.self_attn.{n}_proj.weight"] for n in "qv")
        assert float(q.std() / v.std()) > 1.5
    columns = weights["model.embed_tokens.weight"].std(0)
    assert (float(columns.max() / columns.median()) > 50) == (regime == "outlier")


def test_an_unknown_regime_is_refused():
    with pytest.raises(ValueError, match="regime is 'shy', expected one of loud, quiet, outlier"):
        make_weights(ModelCase().config, 0, "shy")


# Variants.


@each_variant
def test_small_configs_have_power(variant):
    assert next(iter(variant.small)) == "gqa"
    gqa = variant.small["gqa"]
    assert (gqa.num_attention_heads, gqa.num_key_value_heads) == (6, 2)
    for small in variant.small.values():
        assert small.head_dim >= 8
        square = small.num_attention_heads * small.head_dim == small.hidden_size
        assert square is (variant.name in SQUARE)
        assert small.rope.rope_theta not in (10000.0, Rope().rope_theta)
        assert small.num_hidden_layers >= 2
        assert small.num_attention_heads == 6
        assert len({small.vocab_size, small.hidden_size, small.intermediate_size}) == 3
        assert small.max_position_embeddings > 65 + 57
        context = small.rope.original_max_position_embeddings
        assert context is None or context < 65


@each_variant
def test_small_configs_keep_what_makes_the_real_one_special(variant):
    real = variant.config
    for small in variant.small.values():
        for kept in ("rms_norm_eps", "tie_word_embeddings", "hidden_act", "attention_bias", "mlp_bias"):
            assert getattr(small, kept) == getattr(real, kept)
        for kept in ("rope_type", "factor", "low_freq_factor", "high_freq_factor"):
            assert getattr(small.rope, kept) == getattr(real.rope, kept)
        if real.rope.rope_theta != 10000.0:
            assert small.rope.rope_theta == real.rope.rope_theta
    shapes = {c.num_key_value_heads for c in variant.small.values()}
    assert (6 in shapes) == (real.num_attention_heads == real.num_key_value_heads)


def bands(config):
    """How many pairs of a llama3 rule are kept, blended and divided."""
    plain = inv_freq(Rope(rope_theta=config.rope.rope_theta), config.head_dim, torch.float64)
    ratio = inv_freq(config.rope, config.head_dim, torch.float64) / plain
    kept, divided = (ratio > 1 - 1e-9), (ratio < 1 / config.rope.factor + 1e-9)
    return int(kept.sum()), int((~kept & ~divided).sum()), int(divided.sum())


@pytest.mark.parametrize(
    "name", [v.name for v in Selection().variants if v.config.rope.rope_type == "llama3"]
)
@pytest.mark.parametrize("shape", ["real", "gqa"])
def test_all_three_bands_of_llama3_are_inhabited(name, shape):
    assert min(bands(variants.variants([name])[0].shape(shape))) >= 1


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("llama-2-7b", 6_738_415_616),
        ("llama-2-70b", 68_976_648_192),
        ("llama-3-8b", 8_030_261_248),
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.2-1b", 1_235_814_400),
        ("llama-3.2-3b", 3_212_749_824),
        ("tinyllama-1.1b", 1_100_048_384),
        ("smollm2-135m", 134_515_008),
    ],
)
def test_real_configs_have_as_many_parameters_as_published(name, parameters):
    shapes = expected_shapes(variants.variants([name])[0].config)
    assert sum(math.prod(shape) for shape in shapes.values()) == parameters


@pytest.mark.parametrize(
    ("name", "theta", "heads", "width", "context"),
    [
        ("llama-2-7b", 1e4, (32, 32), 128, 4096),
        ("llama-2-70b", 1e4, (64, 8), 128, 4096),
        ("code-llama-7b", 1e6, (32, 32), 128, 16384),
        ("llama-3-8b", 5e5, (32, 8), 128, 8192),
        ("llama-3.1-8b", 5e5, (32, 8), 128, 131072),
        ("llama-3.2-1b", 5e5, (32, 8), 64, 131072),
        ("llama-3.2-3b", 5e5, (24, 8), 128, 131072),
        ("tinyllama-1.1b", 1e4, (32, 4), 64, 2048),
        ("smollm2-135m", 1e5, (9, 3), 64, 8192),
    ],
)
def test_real_configs_have_the_published_rotation(name, theta, heads, width, context):
    c = variants.variants([name])[0].config
    assert c.rope.rope_theta == theta
    assert (c.num_attention_heads, c.num_key_value_heads) == heads
    assert c.head_dim == width
    assert c.max_position_embeddings == context


def test_both_published_factors_are_there():
    factors = {v.config.rope.factor for v in Selection().variants if v.config.rope.rope_type == "llama3"}
    assert factors == {8.0, 32.0}


def test_an_unknown_variant_or_shape_lists_what_exists():
    with pytest.raises(ValueError, match="unknown variant llama-4; there are llama-2-7b, llama-2-70b"):
        variants.variants(["llama-2-7b", "llama-4"])
    with pytest.raises(ValueError, match="variant llama-2-7b has no shape 'mqa', only real, gqa, mha"):
        variants.variants(["llama-2-7b"])[0].shape("mqa")


def test_a_variant_that_is_no_config_or_is_there_already_is_refused():
    with pytest.raises(ValueError, match="variant 'mine' returned dict, expected"):
        variants.variant(name="mine")(dict)
    with pytest.raises(ValueError, match="variant 'llama-2-7b' exists already; pass name="):
        variants.variant(name="llama-2-7b")(lambda: ModelCase().config)
    assert [v.name for v in variants.variants()] == VARIANTS


def test_shrinking_gives_a_real_config_its_own_extreme_on_top():
    real = variants.variants(["llama-3-8b"])[0].config
    assert set(variants.shrink(real)) == {"gqa"}
    assert set(variants.shrink(replace(real, num_key_value_heads=32))) == {"gqa", "mha"}
    mqa = variants.shrink(replace(real, num_key_value_heads=1))
    assert (set(mqa), mqa["mqa"].num_key_value_heads) == ({"gqa", "mqa"}, 1)


# Covering lists: what the quick profile judges must be able to show a fault.


@pytest.fixture(scope="module")
def lists(checks):
    """The covering list of each check, by requirement and title."""
    return {(c.requirement, c.title): c.covering(Selection(profile="quick")) for c in checks}


FEW = set(Selection().few())


def of_models(lists, *prefixes):
    """Lists of models to compute with that go over all variants, of these requirements or of all."""
    return {
        (id_, title): cases
        for (id_, title), cases in lists.items()
        if isinstance(cases[0], ModelCase) and id_.startswith(prefixes or "") and not narrow(cases)
    }


def narrow(cases):
    """Whether the variant does not matter: an untied and a tied one stand for all, or one for each rule."""
    about = {(c.variant, c.shape) for c in cases}
    return about <= FEW or all(c.but and c.but[0][0].startswith("rope.") for c in cases) or about == RULES


# The variants that stand for the frequency rules with scaling.
RULES = {("linear-scaled", "gqa"), ("llama-3.1-8b", "gqa")}


def test_no_covering_list_is_empty_or_says_the_same_twice(lists):
    for key, cases in lists.items():
        assert cases, key
        assert len(cases) == len(set(cases)), key


def test_covering_lists_are_the_same_each_time(checks, lists):
    for a_check in checks:
        assert lists[a_check.requirement, a_check.title] == a_check.covering(Selection(profile="quick"))


def test_every_list_covers_every_dtype_it_is_about(lists):
    sixteen_bit = {"bfloat16", "float16"}
    about = [{"float32"}, set(DTYPES), sixteen_bit]
    for (id_, title), cases in lists.items():
        dtypes = {c.dtype for c in cases}
        assert dtypes in about, (id_, title)
        if dtypes == sixteen_bit:
            assert id_ in {"NORM-4", "NORM-6", "LOGITS-2", "ROPE-10", "WEIGHT-8"}, (id_, title)
        if dtypes == {"float32"}:
            assert isinstance(cases[0], TableCase | ModelCase | WidthCase | LongAttentionCase), (id_, title)


def test_lists_of_models_hold_every_variant_that_they_are_about(lists):
    for (id_, title), cases in of_models(lists).items():
        about = {v.name for v in Selection().variants if concerns(id_, v.name, v.config)}
        assert {c.variant for c in cases} == about, (id_, title)


def test_lists_that_stand_for_all_variants_hold_an_untied_and_a_tied_one(lists):
    for key, cases in lists.items():
        about = {(c.variant, c.shape) for c in cases if isinstance(c, ModelCase)}
        if about and about <= FEW:
            tied = {c.config.tie_word_embeddings for c in cases}
            assert tied == {True, False} or key[0] in {"WEIGHT-3", "WEIGHT-4"}, key


def concerns(id_, name, config):
    if id_ == "ATTN-5":
        return name not in SQUARE
    if id_ == "MASK-7":
        return config.sliding_window is not None
    rules = {"SCALE-1": "linear", "SCALE-3": "llama3", "SCALE-4": "llama3", "ROPE-1": "default"}
    return rules.get(id_, config.rope.rope_type) == config.rope.rope_type


def test_lists_of_models_begin_loud_with_6_heads_on_2_and_several_rows(lists):
    for key, cases in of_models(lists).items():
        first = cases[0]
        assert first.regime == "loud", key
        assert (first.config.num_attention_heads, first.config.num_key_value_heads) == (6, 2), key
        assert first.batch >= 2, key
        assert all(c.config.head_dim >= 8 for c in cases), key
        wide = [c for c in cases if c.config.num_attention_heads * c.config.head_dim != c.config.hidden_size]
        assert len(wide) >= len(cases) / 2, key


LONG = ("LOGITS-1", "LOGITS-2", "CACHE-1", "CACHE-2", "CACHE-3", "MASK-1", "SCALE-1", "SCALE-3", "ROPE-1")


def those(lists, *ids):
    """Lists of exactly these requirements."""
    return {key: cases for key, cases in of_models(lists).items() if key[0] in ids}


def test_lists_that_depend_on_the_length_cross_the_original_context(lists):
    long = those(lists, *LONG)
    assert {id_ for id_, _ in long} == set(LONG)
    for key, cases in long.items():
        for variant in {c.variant for c in cases}:
            assert max(c.tokens for c in cases if c.variant == variant) > CONTEXT, (key, variant)


def test_lists_of_logits_have_65_tokens_in_three_loud_rows(lists):
    for key, cases in those(lists, "LOGITS-1", "LOGITS-2", "SCALE-1", "SCALE-3", "ROPE-1").items():
        for variant in {c.variant for c in cases}:
            mine = [c for c in cases if c.variant == variant]
            assert any((c.tokens, c.batch, c.regime) == (65, 3, "loud") for c in mine), (key, variant)


def test_full_logits_are_judged_in_every_regime_and_shape(lists):
    for key, cases in those(lists, "LOGITS-1", "LOGITS-2").items():
        for pair in Selection().smalls():
            regimes = {c.regime for c in cases if (c.variant, c.shape) == pair}
            assert regimes == set(REGIMES), (key, pair)


def test_lists_of_caches_have_single_tokens_and_chunks_behind_what_is_cached(lists):
    for (id_, title), cases in lists.items():
        if id_ in {"CACHE-1", "CACHE-2", "CACHE-3"}:
            assert all(c.chunks and (c.batch >= 2 or c.tokens > 256) for c in cases), title
            assert any(1 in c.chunks[1:] for c in cases), title
    partitions = [c.chunks for (id_, _), cases in lists.items() if id_ == "CACHE-2" for c in cases]
    assert any(max(chunks[1:]) > 1 for chunks in partitions)


def test_lists_of_rows_have_a_loud_one_among_quiet_ones(lists):
    for id_ in ("NORM-1", "MLP-2"):
        found = [c for (i, _), cases in lists.items() if i == id_ for c in cases if hasattr(c, "pattern")]
        assert any(c.pattern == "rows" and c.rows >= 3 for c in found)


def test_attention_is_judged_with_groups_rows_and_earlier_keys(lists):
    found = [c for (i, _), cases in lists.items() if i == "ATTN-1" for c in cases]
    cases = [c for c in found if isinstance(c, AttentionCase)]
    assert {(6, 2), (6, 3), (6, 6), (6, 1)} <= {(c.heads, c.kv_heads) for c in cases}
    assert any(c.batch >= 3 and c.kv_heads > 1 for c in cases)
    assert any(c.tokens >= 65 for c in cases)
    assert any(c.past and c.tokens > 1 for c in cases)
    assert any(c.past and c.tokens == 1 for c in cases)


def test_16_bit_sums_are_judged_over_512_and_more(lists):
    norms = [c for (i, _), found in lists.items() if i == "NORM-4" for c in found]
    assert max(c.n for c in norms) >= 512
    keys = [c.keys for (i, _), found in lists.items() if i == "ATTN-3" for c in found]
    assert max(keys) >= 512


def test_tables_are_judged_past_every_original_context_and_far_out(lists):
    cases = [c for (i, _), found in lists.items() if i == "ROPE-2" for c in found]
    assert {(v, "real") for v in VARIANTS} <= {(c.variant, c.shape) for c in cases}
    for variant in VARIANTS:
        last = max(int(c.positions()[-1]) for c in cases if c.variant == variant)
        assert last > 131_000
    assert any(int(c.positions()[0]) == 0 for c in cases)


def test_rotations_have_more_than_one_pair_and_positions_beyond_zero(lists):
    for (id_, title), cases in lists.items():
        if isinstance(cases[0], RotateCase) and id_ != "ROPE-7":
            assert any(c.head_dim >= 8 and c.tokens > 1 for c in cases), title
    shifts = [
        c.shift for (i, _), found in lists.items() if i == "ROPE-6" for c in found if hasattr(c, "shift")
    ]
    assert min(shifts) >= 1
    assert max(shifts) >= 1000


def test_a_check_of_an_unknown_requirement_cannot_be_written():
    with pytest.raises(ValueError, match="unknown requirement 'NORM-99'; there are NORM-1, NORM-2"):
        check("NORM-99", cases=lambda _selection: [])(lambda _subject, _case: exact(True, "", ""))
    assert requirement("NORM-1").id == "NORM-1"


def test_a_custom_config_is_found_by_its_variant_alone():
    odd = LlamaConfig(
        vocab_size=131,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=1,
        num_attention_heads=6,
        num_key_value_heads=2,
    )
    with pytest.raises(ValueError, match="no variant has the small config"):
        variants.first_with(odd)
    for v in Selection().variants:
        for small in v.small.values():
            name, shape = variants.first_with(small)
            assert variants.variants([name])[0].shape(shape) == small
