"""The adapters of built-in libraries: each shows its library, and leaves no trace."""

import subprocess
import sys
from dataclasses import replace
from types import ModuleType

import pytest
import torch
from torch.nn import functional

from conformance.implementations import modules, registry
from conformance.implementations.base import OP_CAPABILITIES, Unsupported
from conformance.weight_maps import to_format
from conformance.weights import expected_shapes, make_weights
from reference_impl import Llama, LlamaConfig, Ops, Rope
from reference_impl.attention import attention, causal_mask
from reference_impl.rope import inv_freq, tables

ROPES = {
    "default": Rope(rope_theta=5e5),
    "linear": Rope(rope_theta=5e5, rope_type="linear", factor=4),
    "llama3": Rope(
        rope_theta=5e5,
        rope_type="llama3",
        factor=8,
        low_freq_factor=1,
        high_freq_factor=4,
        original_max_position_embeddings=16,
    ),
}
SMALL = LlamaConfig(
    vocab_size=131,
    hidden_size=48,
    intermediate_size=112,
    num_hidden_layers=2,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=128,
    rope=ROPES["llama3"],
)
MODELS = ("huggingface-eager", "huggingface-sdpa", "litgpt", "llms-from-scratch")
HUGGING_FACE = MODELS[:2]
BOUNDED = MODELS[2:]  # what they are given stands at 0 … T−1, or at places in a cache
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MARGIN = (
    4  # times the error of the reference in the same dtype: another order of sums, never another function
)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def each(*names):
    return pytest.mark.parametrize("name", names)


def tokens(batch=3, length=65, seed=0):
    return torch.randint(0, 131, (batch, length), generator=torch.Generator().manual_seed(seed))


def small(name):
    """H·d ≠ D, for who can."""
    return replace(SMALL, hidden_size=96) if name == "llms-from-scratch" else SMALL


def with_ropes(*names):
    """Each with every frequency rule that it has."""
    pairs = [(n, r) for n in names for r in ROPES if (n, r) != ("llms-from-scratch", "linear")]
    return pytest.mark.parametrize(("name", "rope"), pairs)


def built(name, config=None, dtype=torch.float32):
    config = config or small(name)
    return registry.get(name).build(config, make_weights(config, 0, "loud", dtype))


def reference(config, dtype, working=torch.float64):
    return Llama(config, make_weights(config, 0, "loud", dtype), dtype=working)


def error(y, oracle):
    """Of the worst row, in parts of the row."""
    difference = (y.double() - oracle).norm(dim=-1) / oracle.norm(dim=-1)
    return difference.max().item()


def agrees(y, yardstick, oracle):
    allowed = MARGIN * error(yardstick, oracle) + torch.finfo(yardstick.dtype).eps
    assert y.dtype == yardstick.dtype
    assert y.shape == oracle.shape
    assert error(y, oracle) <= allowed


def agrees_as_a_model(y, config, dtype, ids, **given):
    agrees(y, reference(config, dtype, dtype)(ids, **given), reference(config, dtype)(ids, **given))


@with_ropes(*MODELS)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_are_those_of_the_reference(name, rope, tied, dtype):
    config = replace(small(name), rope=ROPES[rope], tie_word_embeddings=tied)
    agrees_as_a_model(built(name, config, dtype).logits(tokens()), config, dtype, tokens())


@each(*MODELS[:3])
@pytest.mark.parametrize("act", ["gelu", "gelu_pytorch_tanh"])
def test_the_activation_is_the_configs(name, act):
    config = replace(SMALL, hidden_act=act)
    agrees_as_a_model(built(name, config).logits(tokens()), config, torch.float32, tokens())


@each(*HUGGING_FACE)
@pytest.mark.parametrize("biases", [(True, False), (False, True), (True, True)])
def test_biases_are_the_configs(name, biases):
    config = replace(SMALL, attention_bias=biases[0], mlp_bias=biases[1])
    agrees_as_a_model(built(name, config).logits(tokens()), config, torch.float32, tokens())


@pytest.mark.parametrize(
    ("biases", "why"), [((1, 0), "attention_bias"), ((0, 1), "mlp_bias"), ((1, 1), "converter")]
)
def test_litgpt_says_why_it_cannot_have_biases(biases, why):
    with pytest.raises(Unsupported, match=why):
        built("litgpt", replace(SMALL, attention_bias=bool(biases[0]), mlp_bias=bool(biases[1])))


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"head_dim": 8}, "head_dim is always hidden_size / num_attention_heads = 16, not 8"),
        ({"rms_norm_eps": 1e-6}, "rms_norm_eps is always 1e-05, not 1e-06"),
        ({"hidden_act": "gelu", "mlp_bias": True}, "always silu, not gelu, and there are no biases"),
        ({"sliding_window": 9}, "no sliding window"),
        ({"rope": ROPES["linear"]}, "llama3 scaling or none, not linear"),
        ({"rope": Rope(partial_rotary_factor=0.5)}, "rotates whole heads"),
    ],
)
def test_llms_from_scratch_says_what_its_config_has_no_words_for(asked, why):
    with pytest.raises(Unsupported, match=why):
        built("llms-from-scratch", replace(small("llms-from-scratch"), **asked))


@each(*HUGGING_FACE)
def test_positions_are_values_and_no_document_borders(name):
    gaps = torch.tensor([0, 1, 2, 7, 8, 40, 3])
    rows = torch.stack([gaps, gaps + 5])
    for positions in (gaps, rows):
        y = built(name).logits(tokens(2, 7), positions)
        agrees_as_a_model(y, SMALL, torch.float32, tokens(2, 7), positions=positions)


@each(*BOUNDED)
def test_who_counts_positions_itself_takes_no_others(name):
    model = built(name)
    assert torch.equal(model.logits(tokens(1, 5), torch.arange(5)), model.logits(tokens(1, 5)))
    with pytest.raises(Unsupported, match="positions"):
        model.logits(tokens(1, 5), torch.arange(5) + 1)


def test_litgpt_ends_at_the_longest_context():
    model = built("litgpt", replace(SMALL, max_position_embeddings=8))
    with pytest.raises(ValueError, match="max seq length is only 8"):
        model.logits(tokens(1, 9))
    with pytest.raises(ValueError, match="block size is only 8"):
        model.new_cache(1, 9)
    with pytest.raises(Unsupported, match="max_position_embeddings = 8"):
        model.taps(tokens(1, 9))


def stepped(model, ids, *chunks):
    cache = model.new_cache(ids.shape[0], ids.shape[1] + 3)
    return torch.cat([model.step(chunk, cache) for chunk in ids.split(list(chunks), dim=1)], dim=1)


@each(*MODELS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_prefill_chunk_and_decode_give_the_logits_of_one_pass(name, dtype):
    y = stepped(built(name, small(name), dtype), tokens(2, 24), 16, 1, 6, 1)
    agrees_as_a_model(y, small(name), dtype, tokens(2, 24))


@each(*MODELS)
def test_two_caches_do_not_see_each_other(name):
    model, first, second = built(name), tokens(2, 9, seed=1), tokens(3, 12, seed=2)
    caches = model.new_cache(2, 9), model.new_cache(3, 12)
    got = [[], []]
    for ids, cache, into in zip(
        (first[:, :5], second[:, :7], first[:, 5:], second[:, 7:]), caches * 2, got * 2, strict=True
    ):
        into.append(model.step(ids, cache))
    assert torch.equal(torch.cat(got[0], 1), stepped(model, first, 5, 4))
    assert torch.equal(torch.cat(got[1], 1), stepped(model, second, 7, 5))


@each(*MODELS)
def test_a_full_pass_does_not_depend_on_what_was_called_before(name):
    model = built(name)
    before = model.logits(tokens())
    stepped(model, tokens(1, 20), 20)
    model.taps(tokens(1, 3))
    model.block(torch.randn(1, 4, small(name).hidden_size), torch.arange(50, 54), 0)
    assert torch.equal(model.logits(tokens()), before)


def test_the_caches_of_llms_from_scratch_compute_with_the_very_weights_of_the_model():
    model = built("llms-from-scratch")
    caches = model.new_cache(1, 9), model.new_cache(1, 9)
    places = [[p.data_ptr() for p in own.parameters()] for own in (model._model, *(c.model for c in caches))]
    assert places[0] == places[1] == places[2]
    assert caches[0].model is not caches[1].model


def test_a_cache_of_llms_from_scratch_that_was_reset_starts_anew():
    model, ids = built("llms-from-scratch"), tokens(2, 9)
    cache = model.new_cache(2, 9)
    before = model.step(ids, cache)
    model.reset(cache)
    assert model.cache_tensors(cache) == []
    assert torch.equal(model.step(ids, cache), before)


@each(*MODELS)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_come_back_to_the_bit(name, tied, dtype):
    config = replace(small(name), tie_word_embeddings=tied)
    back = built(name, config, dtype).state_dict()
    assert {n: tuple(w.shape) for n, w in back.items()} == expected_shapes(config)
    for tensor, weight in make_weights(config, 0, "loud", dtype).items():
        assert back[tensor].dtype == dtype
        assert torch.equal(back[tensor], weight), tensor


@each(*MODELS)
def test_a_model_has_weights_of_its_own(name):
    weights = make_weights(small(name), 0, "loud")
    model = registry.get(name).build(small(name), weights)
    before = model.logits(tokens())
    assert all(torch.equal(w, weights[n]) for n, w in make_weights(small(name), 0, "loud").items())
    for weight in (*weights.values(), *model.state_dict().values()):
        weight.zero_()
    assert torch.equal(model.logits(tokens()), before)


@each(*MODELS)
@pytest.mark.parametrize("heads", [(6, 2), (6, 6), (6, 1)])
def test_taps_are_those_of_the_reference_and_end_in_the_logits(name, heads):
    config = replace(small(name), num_attention_heads=heads[0], num_key_value_heads=heads[1])
    oracle, yardstick = {}, {}
    reference(config, torch.float32)(tokens(), tap=oracle.__setitem__)
    reference(config, torch.float32, torch.float32)(tokens(), tap=yardstick.__setitem__)
    model = built(name, config)
    taps = model.taps(tokens())
    assert list(taps) == list(oracle)
    for tap, exact in oracle.items():
        agrees(taps[tap], yardstick[tap], exact)
    assert torch.equal(taps["logits"], model.logits(tokens()))


def test_litgpt_shows_no_k_rot_where_the_copies_of_a_head_disagree():
    from conformance.implementations.litgpt_model import watch_attention

    attention, seen = built("litgpt")._gpt.transformer.h[1].attn, {}
    watch_attention(attention, seen.__setitem__)
    q, k = torch.randn(1, 6, 4, 16), torch.randn(1, 2, 4, 16)
    attention.scaled_dot_product_attention(q, k.repeat(1, 3, 1, 1), q)
    assert list(seen) == ["layers.1.q_rot"]
    attention.scaled_dot_product_attention(q, k.repeat_interleave(3, 1), q)
    assert torch.equal(seen["layers.1.k_rot"], k)


@each(*MODELS)
@pytest.mark.parametrize("part", ["attention_module", "mlp", "block"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_parts_are_those_of_the_reference_at_any_positions(name, part, dtype):
    config, positions = small(name), torch.arange(20) * 3 + 11
    x = torch.randn(2, 20, config.hidden_size).to(dtype)

    def of_the_reference(working):
        llama = reference(config, dtype, working)
        step = llama.step(1, positions, causal_mask(20, 20))
        return getattr(llama.ops, part)(x.to(working), llama.layers[1], step)

    given = (x,) if part == "mlp" else (x, positions)
    y = getattr(built(name, config, dtype), part)(*given, layer=1)
    agrees(y, of_the_reference(dtype), of_the_reference(torch.float64))


@with_ropes(*MODELS)
def test_tables_are_the_contracts_to_the_bit(name, rope):
    config = replace(SMALL, rope=ROPES[rope], hidden_size=50, attention_bias=True, max_position_embeddings=64)
    positions = torch.tensor([0, 1, 17, 63, 4095, 3, 131071])
    want = tables(inv_freq(config.rope, 16), positions, torch.float32)
    for got, half in zip(registry.get(name).rope_tables(config, positions), want, strict=True):
        assert torch.equal(got, half.repeat(1, 2))


def test_hugging_face_ties_by_one_parameter():
    for tied in (True, False):
        model = built("huggingface-sdpa", replace(SMALL, tie_word_embeddings=tied))._model
        assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied


def test_hugging_face_keeps_inv_freq_in_float32():
    buffer = built("huggingface-sdpa", SMALL, torch.bfloat16)._model.model.rotary_emb.inv_freq
    assert torch.equal(buffer, inv_freq(SMALL.rope, 16))


def test_litgpt_rounds_its_float32_tables_to_the_models_dtype():
    gpt = built("litgpt", SMALL, torch.bfloat16)._gpt
    cos, _ = tables(inv_freq(SMALL.rope, 16), torch.arange(128), torch.bfloat16)
    assert torch.equal(gpt.cos, cos.repeat(1, 2))
    assert torch.equal(built("litgpt", SMALL, torch.bfloat16).new_cache(1, 9).gpt.cos, gpt.cos[:9])


@each(*MODELS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rotation_is_that_of_the_reference(name, dtype):
    q, k = torch.randn(2, 6, 9, 16).to(dtype), torch.randn(2, 2, 9, 16).to(dtype)
    cos, sin = (t.to(dtype) for t in tables(inv_freq(SMALL.rope, 16), torch.arange(9) * 7, torch.float32))
    got = registry.get(name).apply_rope(q, k, cos.repeat(1, 2), sin.repeat(1, 2))
    yardstick = Ops().apply_rope(q, k, cos, sin)
    oracle = Ops().apply_rope(*(t.double() for t in (q, k, cos, sin)))
    for y, own, exact in zip(got, yardstick, oracle, strict=True):
        agrees(y, own, exact)


@pytest.mark.parametrize(
    ("name", "scale"),
    [*((n, s) for n in (*MODELS[:3], "torch") for s in (0.25, 0.3)), ("llms-from-scratch", 0.25)],
)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 9, 9), (2, 4, 9), (2, 1, 9), (1, 9, 9), (1, 3, 9), (6, 9, 9)])
def test_attention_is_that_of_the_reference(name, dtype, shape, scale):
    groups, queries, keys = shape
    q = torch.randn(2, 6, queries, 16).to(dtype)
    k, v = torch.randn(2, 2, groups, keys, 16).to(dtype)
    mask = causal_mask(queries, keys) & (torch.rand(queries, keys) < 0.8)
    mask[:, 0] = True
    y = registry.get(name).attention_core(q, k, v, mask, scale)
    exact = attention(q.double(), k.double(), v.double(), mask, scale, Ops())
    agrees(y, attention(q, k, v, mask, scale, Ops()), exact)


@each(*BOUNDED)
def test_who_has_queries_of_the_last_tokens_refuses_more_of_them_than_keys(name):
    with pytest.raises(Unsupported, match="last tokens, got 3 on 2"):
        registry.get(name).attention_core(*(torch.zeros(1, 2, n, 4) for n in (3, 2, 2)), None, 0.5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_attention_of_llms_from_scratch_is_that_of_the_reference(dtype):
    q, k, v = (torch.randn(2, heads, 9, 16).to(dtype) for heads in (6, 2, 2))
    exact = attention(q.double(), k.double(), v.double(), causal_mask(9, 9), 0.25, Ops())
    cores = registry.get("llms-from-scratch").attention_cores()
    assert list(cores) == ["plain", "cached", "fast"]
    for core in cores.values():
        y = core(q, k, v, causal_mask(9, 9), 0.25)
        agrees(y, attention(q, k, v, causal_mask(9, 9), 0.25, Ops()), exact)


def test_llms_from_scratch_says_which_attention_it_has_not():
    cores = registry.get("llms-from-scratch").attention_cores()
    q, k = torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 5, 4)
    for core in cores.values():
        with pytest.raises(Unsupported, match=r"1/sqrt\(4\), not by 0.3"):
            core(q, q, q, causal_mask(3, 3), 0.3)
    for name in ("plain", "fast"):
        for keys, mask in ((k, causal_mask(3, 5)), (q, causal_mask(3, 3).T)):
            with pytest.raises(Unsupported, match="causal over the tokens at hand"):
                cores[name](q, keys, keys, mask, 0.5)


@each(*MODELS, "torch")
@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_and_gate_are_those_of_the_reference(name, dtype):
    implementation = registry.get(name)
    x, up, weight = (
        torch.randn(7, 33).to(dtype) * 1e-2,
        torch.randn(7, 33).to(dtype),
        torch.rand(33).to(dtype),
    )
    eps = 1e-5 if name == "llms-from-scratch" else 1e-4
    agrees(
        implementation.rms_norm(x, weight, eps),
        Ops().rms_norm(x, weight, eps),
        Ops().rms_norm(x.double(), weight.double(), eps),
    )
    agrees(implementation.silu_mul(x, up), functional.silu(x) * up, functional.silu(x.double()) * up.double())


def test_each_offers_what_its_library_has():
    assert registry.get("torch").capabilities() == (
        "rms_norm",
        "silu_mul",
        "attention_core",
        "attention_cores",
    )
    lacks = {
        "huggingface-eager": {"ffn_width"},
        "huggingface-sdpa": {"ffn_width"},
        "litgpt": {"ffn_width", "json_rope_tables", "attention_cores"},
        "llms-from-scratch": {
            "ffn_width",
            "json_rope_tables",
            "apply_rope_adjacent",
            "additive_attention_core",
        },
    }
    for name in MODELS:
        offered = set(registry.get(name).capabilities())
        assert offered == {*OP_CAPABILITIES, "logits"} - lacks.get(name, set()), name


@each(*MODELS)
def test_nothing_global_changes(name):
    from transformers import AttentionInterface, AttentionMaskInterface

    built(name).taps(tokens(1, 3))  # whatever is loaded and registered once, is

    def state():
        return {
            "random": torch.get_rng_state().tolist(),
            "dtype": torch.get_default_dtype(),
            "init": {n: getattr(torch.nn.init, n) for n in dir(torch.nn.init)},
            "attention": dict(AttentionInterface()),
            "masks": dict(AttentionMaskInterface()),
            "grad": torch.is_grad_enabled(),
        }

    ids, positions = tokens(1, 9), torch.arange(9)
    q, k = torch.linspace(-1, 1, 2 * 6 * 9 * 16).view(2, 1, 6, 9, 16)
    before, implementation, model = state(), registry.get(name), built(name, small(name), torch.float16)
    model.logits(ids)
    stepped(model, ids, 8, 1)
    implementation.silu_mul(q, k)
    implementation.rms_norm(q, q[0, 0, 0], 1e-5)
    implementation.apply_rope(q, k, *implementation.rope_tables(SMALL, positions))
    implementation.attention_core(q, k, k, causal_mask(9, 9), 0.25)
    assert {n: v for n, v in state().items() if before[n] != v} == {}


@each(*HUGGING_FACE)
def test_watching_adds_a_name_and_changes_none(name):
    from transformers import AttentionInterface, AttentionMaskInterface

    registries = (AttentionInterface(), AttentionMaskInterface())
    before = [dict(registry) for registry in registries]
    model = built(name)
    model.taps(tokens(1, 3))
    for old, now in zip(before, registries, strict=True):
        assert {n for n in now if old.get(n) is not now[n]} <= {
            f"conformance-{name.removeprefix('huggingface-')}"
        }
    assert model._model.config._attn_implementation == name.removeprefix("huggingface-")


# Two tie then: see below.
SILENT = {(name, "lm_head.weight") for name in BOUNDED}


@pytest.mark.parametrize(
    ("name", "tensor"), [(n, t) for n in MODELS for t in expected_shapes(SMALL) if (n, t) not in SILENT]
)
def test_a_missing_tensor_is_named(name, tensor):
    implementation, weights = registry.get(name), make_weights(small(name), 0, "loud")
    del weights[tensor]
    how = (KeyError, "") if name == "llms-from-scratch" else (RuntimeError, "Missing key.*")
    with pytest.raises(how[0], match=f"{how[1]}{implementation.own_name(tensor)}"):
        implementation.build(small(name), weights)


@each(*BOUNDED)
def test_two_libraries_tie_where_the_unembedding_is_missing(name, capsys):
    weights = make_weights(small(name), 0, "loud")
    del weights["lm_head.weight"]
    tied = registry.get(name).build(small(name), weights).logits(tokens())
    agrees_as_a_model(tied, replace(small(name), tie_word_embeddings=True), torch.float32, tokens())
    assert capsys.readouterr().out == ""


def test_hooks_are_gone_when_watching_ends():
    linear, seen = torch.nn.Linear(2, 2), {}
    with modules.watching(linear, seen.__setitem__, inputs={"": "x"}, outputs={"": "y"}):
        linear(torch.zeros(1, 2))
    linear(torch.ones(1, 2))
    assert torch.equal(seen["x"], torch.zeros(1, 2))
    assert torch.equal(seen["y"][0], linear.bias)


@each(*MODELS)
@pytest.mark.parametrize(
    "tensor", ["model.norm.weight", "model.layers.1.self_attn.o_proj.weight", "lm_head.weight"]
)
def test_a_misshapen_tensor_is_named_with_both_shapes(name, tensor):
    implementation, weights = registry.get(name), make_weights(small(name), 0, "loud")
    weights[tensor] = weights[tensor][..., :1]
    got, wanted = (str(list(s)) for s in (weights[tensor].shape, expected_shapes(small(name))[tensor]))
    with pytest.raises((RuntimeError, ValueError)) as raised:
        implementation.build(small(name), weights)
    assert all(word in str(raised.value) for word in (implementation.own_name(tensor), got, wanted))


@each(*MODELS[:3])  # LLMs-from-scratch drops it: docs/findings/llms_from_scratch_loader_names.py
@pytest.mark.parametrize(
    "tensor", ["model.layers.0.self_attn.other_proj.weight", "model.layers.0.mlp.up_proj.bias"]
)
def test_an_unexpected_tensor_is_named(name, tensor):
    weights = {**make_weights(SMALL, 0, "loud"), tensor: torch.zeros(48)}
    with pytest.raises((RuntimeError, KeyError), match=tensor.split(".", 3)[3]):
        registry.get(name).build(SMALL, weights)


@each(*MODELS)
def test_weights_that_do_not_fit_together_are_refused(name):
    config, build = small(name), registry.get(name).build
    weights = make_weights(config, 0, "loud")
    with pytest.raises(ValueError, match=r"lm_head\.weight: the config ties it"):
        build(replace(config, tie_word_embeddings=True), weights)
    with pytest.raises(ValueError, match=r"model.norm.weight is torch.float16.*expected torch.float32"):
        build(config, {**weights, "model.norm.weight": weights["model.norm.weight"].half()})
    with pytest.raises(ValueError, match="empty"):
        build(config, {})


def test_llms_from_scratch_loads_its_own_tensors_strictly():
    config, implementation = small("llms-from-scratch"), registry.get("llms-from-scratch")
    weights = make_weights(config, 0, "loud")
    tensors = to_format("llms-from-scratch", config, weights)
    ours = implementation.build_from("llms-from-scratch", config, tensors)
    assert torch.equal(ours.logits(tokens()), implementation.build(config, weights).logits(tokens()))
    del tensors["out_head.weight"]
    with pytest.raises(RuntimeError, match=r"Missing key.*out_head\.weight"):
        implementation.build_from("llms-from-scratch", config, tensors)
    with pytest.raises(Unsupported, match="not litgpt"):
        implementation.build_from("litgpt", config, tensors)


def test_a_model_of_llms_from_scratch_cannot_be_cast_and_says_why():
    with pytest.raises(
        Unsupported, match=r"dtype of its config, torch\.float32: .* after \.to\(torch\.float16\)"
    ):
        built("llms-from-scratch").cast(torch.float16)


def test_llms_from_scratch_has_its_loss_where_the_plots_beside_it_can_be_imported(monkeypatch):
    model, oracle = built("llms-from-scratch"), reference(small("llms-from-scratch"), torch.float32)
    monkeypatch.delitem(sys.modules, "llms_from_scratch.ch05", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(Unsupported, match="matplotlib"):
        model.loss(tokens())
    for name in ("matplotlib", "matplotlib.pyplot", "matplotlib.ticker"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules["matplotlib.ticker"], "MaxNLocator", None, raising=False)
    want = functional.cross_entropy(oracle(tokens())[:, :-1].flatten(0, 1), tokens()[:, 1:].flatten())
    assert abs(model.loss(tokens()) - want) < 1e-5 * want
    assert len(model.gradients(tokens())) == len(expected_shapes(small("llms-from-scratch")))
    monkeypatch.delitem(sys.modules, "llms_from_scratch.ch05")


def test_litgpts_names_are_those_its_converter_gives():
    from litgpt.scripts.convert_hf_checkpoint import copy_weights_hf_llama

    from conformance.implementations.litgpt import lit_config

    own = {}
    copy_weights_hf_llama(lit_config(SMALL), {}, own, make_weights(SMALL, 0, "loud"))
    assert {registry.get("litgpt").own_name(name) for name in expected_shapes(SMALL)} == set(own)


def test_the_adapters_import_their_libraries_when_used():
    code = (
        "import sys; from conformance.implementations import registry\n"
        "for name in registry.BUILTIN: registry.get(name)\n"
        "heavy = {'transformers', 'litgpt', 'lightning', 'llms_from_scratch', 'tiktoken'}\n"
        "sys.exit(','.join(sys.modules.keys() & heavy) or None)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
