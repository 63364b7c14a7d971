"""The reference, proved against formulas written out here: token by token, in complex numbers and floats."""

import cmath
import dataclasses
import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.weights import make_weights
from reference_impl import Llama, LlamaConfig, Ops, Rope
from reference_impl.attention import attention, causal_mask, fused_attention, softmax
from reference_impl.config import gated_width
from reference_impl.mlp import act
from reference_impl.model import loss
from reference_impl.norm import rms_norm, rms_norm_weight_then_cast
from reference_impl.ops import apply_rope_adjacent
from reference_impl.rope import (
    interleave,
    inv_freq,
    rotate,
    rotate_adjacent,
    tables,
    to_adjacent,
    to_half_split,
)

ROPES = {
    "default": Rope(rope_theta=5e5),
    "linear": Rope(rope_theta=5e5, rope_type="linear", factor=4.0),
    "llama3": Rope(
        rope_theta=5e5,
        rope_type="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=32,
    ),
}
SMALL = LlamaConfig(
    vocab_size=31,
    hidden_size=40,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=16,
    rope=ROPES["llama3"],
)
ARROWS = (
    "attn_norm", "q", "k", "v", "q_rot", "k_rot", "attention", "attn_out", "attn_residual",
    "mlp_norm", "gate", "up", "gated", "mlp_out", "mlp_residual",
)  # fmt: skip


def noise(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def tokens(batch=2, length=7, seed=1):
    return torch.randint(0, SMALL.vocab_size, (batch, length), generator=torch.Generator().manual_seed(seed))


def llama(config=SMALL, dtype=torch.float64, angles="exact", **fields):
    return Llama(config, make_weights(config, 3, "loud"), dtype=dtype, angles=angles, **fields)


def off_by(y, want):
    """Largest difference in parts of the largest value."""
    return float((y - want).abs().max() / want.abs().max())


# The model again, slowly: one token, one head, one pair at a time, in Python's floats.


def naive_frequency(rope, head_dim, pair):
    frequency = rope.rope_theta ** (-2 * pair / head_dim)
    if rope.rope_type == "linear":
        return frequency / rope.factor
    if rope.rope_type == "llama3":
        wavelength, context = 2 * math.pi / frequency, rope.original_max_position_embeddings
        if wavelength < context / rope.high_freq_factor:
            return frequency
        if wavelength > context / rope.low_freq_factor:
            return frequency / rope.factor
        low, high = rope.low_freq_factor, rope.high_freq_factor
        smooth = (context / wavelength - low) / (high - low)
        return (1 - smooth) * frequency / rope.factor + smooth * frequency
    return frequency


def naive_rotate(head, position, rope, pairs):
    """The pairs of one head [d] as complex numbers, each turned by its angle."""
    turned = head.clone()
    for i, (a, b) in enumerate(pairs(len(head))):
        angle = position * naive_frequency(rope, len(head), i)
        z = complex(head[a], head[b]) * cmath.exp(1j * angle)
        turned[a], turned[b] = z.real, z.imag
    return turned


def half_split_pairs(width):
    return [(i, i + width // 2) for i in range(width // 2)]


def adjacent_pairs(width):
    return [(2 * i, 2 * i + 1) for i in range(width // 2)]


def naive_norm(x, weight, eps):
    mean = math.fsum(float(v) ** 2 for v in x) / len(x)
    return torch.stack([w * v / math.sqrt(mean + eps) for v, w in zip(x, weight, strict=True)])


def naive_act(z, kind):
    z = float(z)
    if kind == "silu":
        return z / (1 + math.exp(-z))
    if kind == "gelu":
        return z * (1 + math.erf(z / math.sqrt(2))) / 2
    return z * (1 + math.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))) / 2


def naive_logits(config, weights, row, first=0, pairs=half_split_pairs):
    """Logits [T, V] of one row of tokens that begins at position first."""
    d, group = config.head_dim, config.num_attention_heads // config.num_key_value_heads

    def linear(x, name):
        y = weights[f"{name}.weight"] @ x
        return y + weights[f"{name}.bias"] if f"{name}.bias" in weights else y

    stream = [weights["model.embed_tokens.weight"][t] for t in row]
    for layer in range(config.num_hidden_layers):
        here = f"model.layers.{layer}."
        eps = config.rms_norm_eps
        normed = [naive_norm(x, weights[f"{here}input_layernorm.weight"], eps) for x in stream]
        q, k, v = ([linear(x, f"{here}self_attn.{n}_proj") for x in normed] for n in "qkv")
        for t in range(len(row)):
            heads = []
            for h in range(config.num_attention_heads):
                kv = slice((h // group) * d, (h // group + 1) * d)
                turned = naive_rotate(q[t][h * d : (h + 1) * d], first + t, config.rope, pairs)
                keys = [naive_rotate(k[s][kv], first + s, config.rope, pairs) for s in range(t + 1)]
                scores = [float(turned @ key) / math.sqrt(d) for key in keys]
                powers = [math.exp(score - max(scores)) for score in scores]
                heads.append(sum(p / math.fsum(powers) * v[s][kv] for s, p in enumerate(powers)))
            stream[t] = stream[t] + linear(torch.cat(heads), f"{here}self_attn.o_proj")
        for t, x in enumerate(stream):
            z = naive_norm(x, weights[f"{here}post_attention_layernorm.weight"], eps)
            gate, up = linear(z, f"{here}mlp.gate_proj"), linear(z, f"{here}mlp.up_proj")
            gated = torch.stack([naive_act(g, config.hidden_act) * u for g, u in zip(gate, up, strict=True)])
            stream[t] = x + linear(gated, f"{here}mlp.down_proj")
    last = [naive_norm(x, weights["model.norm.weight"], config.rms_norm_eps) for x in stream]
    head = "model.embed_tokens" if config.tie_word_embeddings else "lm_head"
    return torch.stack([weights[f"{head}.weight"] @ x for x in last])


CONFIGS = {
    "llama3": SMALL,
    "linear": replace(SMALL, rope=ROPES["linear"], num_key_value_heads=6),
    "default, tied, one kv head": replace(
        SMALL, rope=ROPES["default"], num_key_value_heads=1, tie_word_embeddings=True
    ),
    "biases, gelu": replace(SMALL, attention_bias=True, mlp_bias=True, hidden_act="gelu", rms_norm_eps=0.01),
    "tanh gelu": replace(SMALL, hidden_act="gelu_pytorch_tanh", num_hidden_layers=1),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_the_formulas_taken_one_number_at_a_time(name):
    model = llama(CONFIGS[name])
    row = tokens(1, 6)
    want = naive_logits(model.config, model.weights, row[0])
    assert off_by(model(row)[0], want) < 1e-12


def test_a_model_in_metas_layout_is_the_same_function():
    model = llama()
    heads = {"q_proj": SMALL.num_attention_heads, "k_proj": SMALL.num_key_value_heads}
    metas = dict(model.weights)
    for name, (part, count) in itertools.product(model.weights, heads.items()):
        if part in name:
            metas[name] = to_adjacent(model.weights[name], count)
    row = tokens(1, 6)
    adjacent = Llama(
        SMALL,
        metas,
        ops=Ops(apply_rope=apply_rope_adjacent),
        dtype=torch.float64,
        angles="exact",
    )
    by_hand = naive_logits(SMALL, metas, row[0], pairs=adjacent_pairs)
    assert off_by(by_hand, model(row)[0]) < 1e-12
    assert off_by(adjacent(row)[0], model(row)[0]) < 1e-12
    assert off_by(llama()(row)[0], Llama(SMALL, metas, dtype=torch.float64)(row)[0]) > 0.01


def test_far_positions_are_exact_in_float64_and_rounded_in_the_contract():
    row, first = tokens(1, 3), 100_003
    positions = torch.arange(first, first + 3)
    want = naive_logits(SMALL, llama().weights, row[0], first)
    assert off_by(llama()(row, positions=positions)[0], want) < 1e-10
    assert off_by(llama(angles="contract")(row, positions=positions)[0], want) > 1e-5


# The parts.


@pytest.mark.parametrize("eps", [1e-5, 0.1])
def test_rms_norm_is_its_formula(eps):
    x, weight = noise(3, 7), noise(7, seed=1)
    want = torch.stack([naive_norm(row, weight, eps) for row in x])
    assert off_by(rms_norm(x, weight, eps), want) < 1e-15
    assert off_by(rms_norm_weight_then_cast(x, weight, eps), want) < 1e-15


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_norms_conventions_differ_in_the_cast_alone(dtype):
    x, weight = noise(40, 64, dtype=dtype), noise(64, seed=1, dtype=dtype)
    wide = x.float() / (x.float().pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
    assert off_by(rms_norm(x, weight, 1e-5).float(), (wide.to(dtype) * weight).float()) < 2e-2
    one, other = rms_norm(x, weight, 1e-5), rms_norm_weight_then_cast(x, weight, 1e-5)
    assert one.dtype == other.dtype == dtype
    assert not torch.equal(one, other)
    assert torch.equal(other, (rms_norm(x.float(), weight.float(), 1e-5)).to(dtype))


def test_16_bit_statistics_neither_overflow_nor_vanish():
    for scale in (300.0, 1e-4):
        x = (scale * noise(2, 64)).to(torch.float16)
        y = rms_norm(x, torch.ones(64, dtype=torch.float16), 0.0).float()
        assert float(y.pow(2).mean()) == pytest.approx(1, rel=2e-3)
    scores = torch.zeros(1, 4096, dtype=torch.bfloat16)
    assert float(softmax(scores).double().sum()) == pytest.approx(1, rel=1e-3)


@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_pytorch_tanh"])
def test_activations_are_their_formulas(kind):
    z = torch.linspace(-30, 30, 61, dtype=torch.float64)
    want = torch.tensor([naive_act(v, kind) for v in z], dtype=torch.float64)
    assert float((act(z, kind) - want).abs().max()) < 1e-14


@pytest.mark.parametrize("rope", ROPES.values(), ids=list(ROPES))
@pytest.mark.parametrize("head_dim", [2, 16, 64])
def test_frequencies_are_their_rule(rope, head_dim):
    got = inv_freq(rope, head_dim, torch.float64)
    want = [naive_frequency(rope, head_dim, i) for i in range(head_dim // 2)]
    assert got.tolist() == pytest.approx(want, rel=1e-14)
    assert inv_freq(rope, head_dim).dtype == torch.float32


def test_llama3_has_three_bands_and_meets_both_edges():
    """A pair exactly on an edge is kept, or divided, whole."""
    rope = ROPES["llama3"]
    for turns, want in ((4.0, 1.0), (1.0, 1 / 8), (2.5, 0.5 / 8 + 0.5)):
        # One pair of frequency 1, and a context of so many of its wavelengths.
        there = replace(rope, original_max_position_embeddings=2 * math.pi * turns)
        assert float(inv_freq(there, 2, torch.float64)) == pytest.approx(want, rel=1e-14)
    bands = (inv_freq(rope, 32, torch.float64) / inv_freq(ROPES["default"], 32, torch.float64)).tolist()
    assert bands[0] == 1
    assert bands[-1] == pytest.approx(1 / 8)
    assert any(0.13 < b < 0.99 for b in bands)


def test_contract_angles_are_float32_products():
    frequencies = inv_freq(ROPES["default"], 16)
    position = 99_991
    cos, _ = tables(frequencies, torch.tensor([position]), torch.float64)
    angles = [float(torch.tensor(float(position), dtype=torch.float32) * f) for f in frequencies]
    assert cos[0].tolist() == pytest.approx([math.cos(a) for a in angles], abs=1e-15)
    assert cos.dtype == torch.float64


@pytest.mark.parametrize(("turn", "pairs"), [(rotate, half_split_pairs), (rotate_adjacent, adjacent_pairs)])
def test_rotation_turns_complex_numbers(turn, pairs):
    x, rope = noise(2, 3, 5, 16), ROPES["llama3"]
    positions = torch.tensor([0, 1, 7, 8190, 3])
    cos, sin = tables(inv_freq(rope, 16, torch.float64), positions, torch.float64)
    y = turn(x, cos, sin)
    for b, h, t in itertools.product(range(2), range(3), range(5)):
        assert off_by(y[b, h, t], naive_rotate(x[b, h, t], int(positions[t]), rope, pairs)) < 1e-12


@pytest.mark.parametrize("heads", [6, 2])
def test_the_permutation_between_layouts_follows_its_row_rule_and_comes_back(heads):
    d = 16
    for weight in (noise(heads * d, 5), noise(heads * d)):
        half = to_half_split(weight, heads)
        for h, s, i in itertools.product(range(heads), range(2), range(d // 2)):
            assert torch.equal(half[h * d + s * d // 2 + i], weight[h * d + 2 * i + s])
        assert torch.equal(to_adjacent(half, heads), weight)
        assert torch.equal(to_half_split(to_adjacent(weight, heads), heads), weight)
        assert not torch.equal(half, weight)


def test_with_the_wrong_head_count_the_permutation_is_another():
    weight = noise(6 * 16, 5)
    assert not torch.equal(to_half_split(weight, 2), to_half_split(weight, 6))


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (5, 5), (3, 7), (1, 9)])
def test_the_mask_is_causal_and_aligned_at_the_end(queries, keys):
    mask = causal_mask(queries, keys)
    for t, s in itertools.product(range(queries), range(keys)):
        assert bool(mask[t, s]) == (s <= keys - queries + t)


def test_attention_is_a_weighted_mean_head_by_head():
    q, k, v = noise(2, 6, 3, 8), noise(2, 2, 5, 8, seed=1), noise(2, 2, 5, 8, seed=2)
    y = attention(q, k, v, causal_mask(3, 5), 0.25, Ops())
    for b, h, t in itertools.product(range(2), range(6), range(3)):
        seen = range(2 + t + 1)
        powers = [math.exp(0.25 * float(q[b, h, t] @ k[b, h // 3, s])) for s in seen]
        want = sum(p / sum(powers) * v[b, h // 3, s] for p, s in zip(powers, seen, strict=True))
        assert off_by(y[b, h, t], want) < 1e-13


def test_no_mask_lets_every_query_see_every_key():
    q, k, v = noise(1, 2, 3, 8), noise(1, 2, 3, 8, seed=1), noise(1, 2, 3, 8, seed=2)
    everything = torch.ones(3, 3, dtype=torch.bool)
    assert torch.equal(attention(q, k, v, None, 1.0, Ops()), attention(q, k, v, everything, 1.0, Ops()))


# The model as a whole.


def test_taps_are_the_documented_names_in_causal_order():
    seen = []
    llama()(tokens(), tap=lambda name, _value: seen.append(name))
    layers = [f"layers.{i}.{arrow}" for i in range(SMALL.num_hidden_layers) for arrow in ARROWS]
    assert seen == ["embedding", *layers, "final_norm", "logits"]


def test_taps_have_the_documented_shapes_and_the_models_dtype():
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        seen = {}
        logits = llama(dtype=dtype)(tokens(2, 7), tap=seen.__setitem__)
        assert {value.dtype for value in seen.values()} == {dtype}
        shapes = {name.removeprefix("layers.0."): tuple(v.shape) for name, v in seen.items()}
        assert shapes["q"] == shapes["q_rot"] == (2, 6, 7, 16)
        assert shapes["k"] == shapes["k_rot"] == shapes["v"] == (2, 2, 7, 16)
        assert shapes["attention"] == (2, 7, 6 * 16)
        assert shapes["gate"] == shapes["up"] == shapes["gated"] == (2, 7, 24)
        assert shapes["attn_norm"] == shapes["mlp_residual"] == shapes["embedding"] == (2, 7, 40)
        assert torch.equal(seen["logits"], logits)


def test_looking_changes_nothing():
    assert torch.equal(llama()(tokens()), llama()(tokens(), tap=lambda _name, value: value.clone()))


class DtypesSeen(TorchDispatchMode):
    """Notes the dtype of every floating-point tensor that any operation makes."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        made = out if isinstance(out, tuple | list) else [out]
        self.seen |= {t.dtype for t in made if isinstance(t, Tensor) and t.is_floating_point()}
        return out


def test_float64_with_exact_angles_makes_no_tensor_of_another_dtype():
    weights = make_weights(SMALL, 3, "loud", torch.float64)
    with DtypesSeen() as dtypes:
        model = Llama(SMALL, weights, dtype=torch.float64, angles="exact")
        cache = model.new_cache(2, 9)
        model(tokens(2, 7), cache=cache)
        model(tokens(2, 2), cache=cache)
    assert dtypes.seen == {torch.float64}


def test_the_dtype_watch_sees_contract_angles():
    with DtypesSeen() as dtypes:
        llama(angles="contract")(tokens())
    assert torch.float32 in dtypes.seen


@pytest.mark.parametrize("chunks", [(5, 1, 1), (1, 6), (3, 4), (7,)])
def test_a_cache_gives_the_logits_of_one_pass(chunks):
    model = llama()
    row = tokens(3, 7)
    cache = model.new_cache(3, 8)
    stepped = torch.cat([model(chunk, cache=cache) for chunk in row.split(list(chunks), dim=1)], dim=1)
    assert cache.length == 7
    assert off_by(stepped, model(row)) < 1e-13


def test_a_cache_holds_rotated_keys_of_the_kv_heads_alone():
    cache, seen = llama(dtype=torch.bfloat16).new_cache(3, 50), {}
    # k and v x layers x batch x kv heads x capacity x width x two bytes.
    assert cache.k.nbytes + cache.v.nbytes == 2 * 2 * 3 * 2 * 50 * 16 * 2
    llama(dtype=torch.bfloat16)(tokens(3, 4), cache=cache, tap=seen.__setitem__)
    assert torch.equal(cache.k[1, :, :, :4], seen["layers.1.k_rot"])
    assert torch.equal(cache.v[1, :, :, :4], seen["layers.1.v"])


def test_a_step_that_does_not_fit_is_refused_before_anything_is_written():
    model = llama()
    cache = model.new_cache(2, 5)
    model(tokens(2, 4), cache=cache)
    k, v = cache.k.clone(), cache.v.clone()
    with pytest.raises(ValueError, match=r"2 more tokens do not fit: 4 of 5 are used.*nothing was written"):
        model(tokens(2, 2), cache=cache)
    assert torch.equal(cache.k, k)
    assert torch.equal(cache.v, v)
    assert cache.length == 4


def test_a_cache_that_was_reset_is_as_good_as_new():
    model = llama()
    cache = model.new_cache(2, 7)
    model(tokens(2, 7, seed=8), cache=cache)
    cache.reset()
    assert torch.equal(model(tokens(), cache=cache), model(tokens(), cache=model.new_cache(2, 7)))


@pytest.mark.parametrize("start", [0, 3, 5], ids=["restarted", "one short", "one too many"])
def test_with_a_cache_the_position_is_the_number_of_tokens_processed(start):
    """Counter-proof of the test above: a step at another position gives other logits."""
    model, row = llama(), tokens(2, 7)
    cache = model.new_cache(2, 7)
    model(row[:, :4], cache=cache)
    wrong = model(row[:, 4:], cache=cache, positions=torch.arange(start, start + 3))
    assert off_by(wrong, model(row)[:, 4:]) > 1e-3


def test_positions_may_differ_from_row_to_row():
    model, row = llama(), tokens(2, 5)
    starts = [3, 41]
    together = model(row, positions=torch.stack([torch.arange(s, s + 5) for s in starts]))
    for i, start in enumerate(starts):
        alone = model(row[i : i + 1], positions=torch.arange(start, start + 5))
        assert off_by(together[i], alone[0]) < 1e-13


def test_a_mask_that_is_given_is_used():
    model, row = llama(), tokens(1, 5)
    blind = causal_mask(5, 5)
    blind[:, 0] = False
    blind[0, 0] = True
    later = row.clone()
    later[0, 0] = (later[0, 0] + 1) % SMALL.vocab_size
    assert torch.equal(model(row, mask=blind)[:, 1:], model(later, mask=blind)[:, 1:])
    assert not torch.equal(model(row)[:, 1:], model(later)[:, 1:])


def test_a_call_leaves_its_inputs_and_nothing_else_behind():
    weights = make_weights(SMALL, 3, "loud", torch.float64)
    kept = {name: value.clone() for name, value in weights.items()}
    model = Llama(SMALL, weights, dtype=torch.float64)
    row = tokens()
    first, same = model(row), row.clone()
    model(tokens(3, 5, seed=9), cache=model.new_cache(3, 6))
    model(tokens(1, 9, seed=2), positions=torch.arange(50, 59))
    assert torch.equal(model(row), first)
    assert torch.equal(row, same)
    assert all(torch.equal(weights[name], value) for name, value in kept.items())
    assert weights.keys() == kept.keys()


def test_ops_leave_their_inputs_as_they_are():
    q, k, weight = noise(2, 6, 5, 16), noise(2, 2, 5, 16, seed=1), noise(16, seed=2)
    cos, sin = tables(inv_freq(ROPES["default"], 16, torch.float64), torch.arange(5), torch.float64)
    given = (q, k, weight, cos, sin)
    kept = [t.clone() for t in given]
    ops = Ops()
    ops.rms_norm(q, weight, 1e-5)
    ops.apply_rope(q, k, cos, sin)
    ops.attention(q, k, k, causal_mask(5, 5), 0.25, ops)
    ops.gated(q, q, "silu", ops)
    assert all(torch.equal(a, b) for a, b in zip(given, kept, strict=True))


def test_another_op_stays_in_its_own_model():
    right = llama()
    before = right(tokens())
    wrong = llama(ops=replace(Ops(), rms_norm=lambda x, _w, _eps: x))
    assert off_by(wrong(tokens()), before) > 0.01
    assert torch.equal(right(tokens()), before)
    with pytest.raises(dataclasses.FrozenInstanceError):
        right.ops.rms_norm = None


# What a config refuses.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_dim": 15}, "head_dim is 15, expected an even number"),
        ({"num_key_value_heads": 4}, "num_attention_heads 6 is no multiple of num_key_value_heads 4"),
        ({"num_key_value_heads": 0}, "num_key_value_heads is 0"),
        ({"hidden_size": -40}, "hidden_size is -40, expected a whole number of at least 1"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"vocab_size": 31.0}, "vocab_size is 31.0"),
        ({"head_dim": 0}, "hidden_size 40 is no multiple of num_attention_heads 6; give head_dim"),
        ({"head_dim": -2}, "head_dim is -2"),
        ({"rms_norm_eps": -1e-5}, "rms_norm_eps is -1e-05"),
        ({"rms_norm_eps": math.nan}, "rms_norm_eps is nan"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu', expected one of silu, gelu"),
    ],
)
def test_sizes_that_make_no_llama_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_type": "yarn"}, "rope_type is 'yarn', expected one of default, linear, llama3"),
        ({"factor": None}, r"missing \['factor'\]"),
        ({"original_max_position_embeddings": None}, r"missing \['original_max_position_embeddings'\]"),
        ({"rope_type": "default"}, "not taken.*factor"),
        ({"rope_type": "linear"}, "not taken.*high_freq_factor"),
        ({"low_freq_factor": 4.0}, "low_freq_factor is 4.0, expected less than high_freq_factor 4.0"),
        ({"low_freq_factor": 8.0}, "may have been exchanged"),
        ({"rope_theta": 0.0}, "rope_theta is 0.0, expected a positive number"),
        ({"rope_theta": math.inf}, "rope_theta is inf"),
        ({"factor": -8.0}, "factor is -8.0"),
    ],
)
def test_frequency_rules_with_other_fields_than_theirs_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(ROPES["llama3"], **changes)


def test_a_config_does_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        SMALL.head_dim = 8
    assert replace(SMALL, head_dim=0, hidden_size=48).head_dim == 8
    assert SMALL.group_size == 3


@pytest.mark.parametrize(
    "wrong", [{"hidden_size": "48"}, {"rms_norm_eps": "1e-5"}, {"num_attention_heads": 0}]
)
def test_text_in_place_of_a_number_is_a_value_error_that_names_the_field(wrong):
    sizes = {"vocab_size": 9, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 1}
    with pytest.raises(ValueError, match=next(iter(wrong))):
        LlamaConfig(**{**sizes, "num_attention_heads": 6, "num_key_value_heads": 2, **wrong})


def test_text_in_place_of_theta_is_a_value_error_that_names_it():
    with pytest.raises(ValueError, match="rope_theta"):
        Rope(rope_theta="1e4")


# Rotation of a part, the loss, the width by the rule of params.json.


@pytest.mark.parametrize("turn", [rotate, rotate_adjacent])
def test_of_a_head_rotated_in_part_the_rest_passes_through(turn):
    x = torch.randn(2, 3, 5, 16, generator=torch.Generator().manual_seed(1))
    cos, sin = tables(inv_freq(Rope(partial_rotary_factor=0.25), 16), torch.arange(5), torch.float32)
    y = turn(x, cos, sin)
    assert torch.equal(y[..., 4:], x[..., 4:])
    assert torch.equal(y[..., :4], turn(x[..., :4], cos, sin))
    assert not torch.equal(y[..., 1:, :4], x[..., 1:, :4])


def test_the_frequencies_of_a_part_are_those_of_a_head_of_that_width():
    assert torch.equal(inv_freq(Rope(partial_rotary_factor=0.5), 32), inv_freq(Rope(), 16))


@pytest.mark.parametrize("part", [0.0, -0.5, 1.5, float("nan"), "half"])
def test_a_part_of_the_head_lies_between_nothing_and_all_of_it(part):
    with pytest.raises(ValueError, match="partial_rotary_factor is "):
        Rope(partial_rotary_factor=part)


@pytest.mark.parametrize("part", [0.05, 0.2])
def test_a_part_that_holds_no_whole_pairs_is_refused(part):
    with pytest.raises(ValueError, match="expected an even number of at least 2: rotation turns pairs"):
        replace(SMALL, head_dim=16, rope=Rope(partial_rotary_factor=part))


def test_interleaved_elements_are_those_of_permuted_rows():
    rows = torch.arange(24.0).view(24, 1)
    by_heads = interleave(rows.view(3, 8)).flatten()
    assert torch.equal(by_heads, to_adjacent(rows, 3).flatten())


def test_the_loss_is_the_mean_surprise_at_each_next_token():
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(2, 5, 7, generator=generator, dtype=torch.float64)
    tokens = torch.randint(7, (2, 5), generator=generator)
    chances = [
        float(logits[b, t].exp()[tokens[b, t + 1]] / logits[b, t].exp().sum())
        for b in range(2)
        for t in range(4)
    ]
    assert float(loss(logits, tokens)) == pytest.approx(-sum(map(math.log, chances)) / 8, rel=1e-12)
    assert loss(logits.bfloat16(), tokens).dtype == torch.float32


@pytest.mark.parametrize(
    ("hidden_size", "multiple_of", "multiplier", "width"),
    [(4096, 256, 1.0, 11008), (4096, 1024, 1.3, 14336), (2048, 256, 1.5, 8192), (48, 1, 1.0, 128)],
)
def test_the_width_by_the_rule_is_that_of_the_released_models(hidden_size, multiple_of, multiplier, width):
    assert gated_width(hidden_size, multiple_of, multiplier) == width


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fused_attention_is_attention_where_nothing_is_narrow(dtype):
    q, k, v = torch.randn(3, 2, 4, 5, 8, generator=torch.Generator().manual_seed(3)).to(dtype)
    given = (q, k, v, causal_mask(5, 5), 0.3, Ops())
    assert torch.equal(fused_attention(*given), attention(*given))


def test_fused_attention_rounds_once_in_16_bit():
    q, k, v = torch.randn(3, 2, 4, 5, 8, generator=torch.Generator().manual_seed(3)).bfloat16()
    given = (causal_mask(5, 5), 0.3, Ops())
    wide = attention(q.float(), k.float(), v.float(), *given)
    assert torch.equal(fused_attention(q, k, v, *given), wide.bfloat16())
