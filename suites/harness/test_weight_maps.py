"""Weights to and from every format: names spelt out, rows counted by hand, the libraries' own converters."""

import re
from dataclasses import replace

import gguf
import pytest
import torch
from litgpt.scripts.convert_hf_checkpoint import copy_weights_hf_llama
from litgpt.scripts.convert_lit_checkpoint import copy_weights_llama

from conformance.implementations import registry
from conformance.implementations.base import Unsupported
from conformance.implementations.litgpt import lit_config
from conformance.implementations.user import User
from conformance.weight_maps import (
    FORMATS,
    canonical_names,
    format_shapes,
    formats_of,
    from_format,
    own_name,
    to_format,
)
from conformance.weights import expected_shapes, make_weights
from reference_impl import LlamaConfig, Rope

SMALL = LlamaConfig(
    vocab_size=131,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=2,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=16,
)
# One layer, every size another number, so that a shape says which tensor it is.
TINY = LlamaConfig(
    vocab_size=11,
    hidden_size=5,
    intermediate_size=7,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=2,
)
CONFIGS = {
    "untied": SMALL,
    "tied": replace(SMALL, tie_word_embeddings=True),
    "biases": replace(SMALL, attention_bias=True, mlp_bias=True),
    "attention biases": replace(SMALL, attention_bias=True),
    "mlp biases": replace(SMALL, mlp_bias=True),
}
HOLDS = {
    "untied": FORMATS,
    "tied": FORMATS,
    "biases": ("huggingface", "litgpt", "gguf"),
    "attention biases": ("huggingface", "gguf"),
    "mlp biases": ("huggingface", "gguf"),
}
each_format = pytest.mark.parametrize("name", FORMATS)

EMBEDDING, NORM, Q, KV, O, UP, DOWN = (11, 5), (5,), (4, 5), (2, 5), (5, 4), (7, 5), (5, 7)
NAMES = {
    "huggingface": {
        "model.embed_tokens.weight": EMBEDDING,
        "model.layers.0.input_layernorm.weight": NORM,
        "model.layers.0.post_attention_layernorm.weight": NORM,
        "model.layers.0.self_attn.q_proj.weight": Q,
        "model.layers.0.self_attn.k_proj.weight": KV,
        "model.layers.0.self_attn.v_proj.weight": KV,
        "model.layers.0.self_attn.o_proj.weight": O,
        "model.layers.0.mlp.gate_proj.weight": UP,
        "model.layers.0.mlp.up_proj.weight": UP,
        "model.layers.0.mlp.down_proj.weight": DOWN,
        "model.norm.weight": NORM,
        "lm_head.weight": EMBEDDING,
    },
    "litgpt": {
        "transformer.wte.weight": EMBEDDING,
        "transformer.h.0.norm_1.weight": NORM,
        "transformer.h.0.norm_2.weight": NORM,
        "transformer.h.0.attn.qkv.weight": (8, 5),
        "transformer.h.0.attn.proj.weight": O,
        "transformer.h.0.mlp.fc_1.weight": UP,
        "transformer.h.0.mlp.fc_2.weight": UP,
        "transformer.h.0.mlp.proj.weight": DOWN,
        "transformer.ln_f.weight": NORM,
        "lm_head.weight": EMBEDDING,
    },
    "llms-from-scratch": {
        "tok_emb.weight": EMBEDDING,
        "trf_blocks.0.norm1.weight": NORM,
        "trf_blocks.0.norm2.weight": NORM,
        "trf_blocks.0.att.W_query.weight": Q,
        "trf_blocks.0.att.W_key.weight": KV,
        "trf_blocks.0.att.W_value.weight": KV,
        "trf_blocks.0.att.out_proj.weight": O,
        "trf_blocks.0.ff.fc1.weight": UP,
        "trf_blocks.0.ff.fc2.weight": UP,
        "trf_blocks.0.ff.fc3.weight": DOWN,
        "final_norm.weight": NORM,
        "out_head.weight": EMBEDDING,
    },
    "meta": {
        "tok_embeddings.weight": EMBEDDING,
        "layers.0.attention_norm.weight": NORM,
        "layers.0.ffn_norm.weight": NORM,
        "layers.0.attention.wq.weight": Q,
        "layers.0.attention.wk.weight": KV,
        "layers.0.attention.wv.weight": KV,
        "layers.0.attention.wo.weight": O,
        "layers.0.feed_forward.w1.weight": UP,
        "layers.0.feed_forward.w3.weight": UP,
        "layers.0.feed_forward.w2.weight": DOWN,
        "norm.weight": NORM,
        "output.weight": EMBEDDING,
    },
    "torchtune": {
        "tok_embeddings.weight": EMBEDDING,
        "layers.0.sa_norm.scale": NORM,
        "layers.0.mlp_norm.scale": NORM,
        "layers.0.attn.q_proj.weight": Q,
        "layers.0.attn.k_proj.weight": KV,
        "layers.0.attn.v_proj.weight": KV,
        "layers.0.attn.output_proj.weight": O,
        "layers.0.mlp.w1.weight": UP,
        "layers.0.mlp.w3.weight": UP,
        "layers.0.mlp.w2.weight": DOWN,
        "norm.scale": NORM,
        "output.weight": EMBEDDING,
    },
    "gguf": {
        "token_embd.weight": EMBEDDING,
        "blk.0.attn_norm.weight": NORM,
        "blk.0.ffn_norm.weight": NORM,
        "blk.0.attn_q.weight": Q,
        "blk.0.attn_k.weight": KV,
        "blk.0.attn_v.weight": KV,
        "blk.0.attn_output.weight": O,
        "blk.0.ffn_gate.weight": UP,
        "blk.0.ffn_up.weight": UP,
        "blk.0.ffn_down.weight": DOWN,
        "output_norm.weight": NORM,
        "output.weight": EMBEDDING,
    },
}
HEADS = {"litgpt": "lm_head.weight", "llms-from-scratch": "out_head.weight", "meta": "output.weight"}


def equal(these, those):
    assert these.keys() == those.keys()
    for name, tensor in these.items():
        assert tensor.dtype == those[name].dtype
        assert torch.equal(tensor, those[name]), name


def refused(call, *words):
    with pytest.raises(ValueError, match=".*".join(map(re.escape, words))):
        call()


@each_format
def test_the_names_and_shapes_are_those_that_the_library_has(name):
    tensors = to_format(name, TINY, make_weights(TINY, 0, "loud"))
    assert {own: tuple(tensor.shape) for own, tensor in tensors.items()} == NAMES[name]
    assert format_shapes(name, TINY) == NAMES[name]


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in HOLDS.items() for name in names])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_there_and_back_is_the_same_to_the_bit(kind, name, dtype):
    config = CONFIGS[kind]
    weights = make_weights(config, 0, "loud", dtype)
    before = {own: tensor.clone() for own, tensor in weights.items()}
    tensors = to_format(name, config, weights)
    back = from_format(name, config, tensors)
    equal(back, weights)
    assert list(back) == list(weights)
    equal(weights, before)
    assert {tensor.dtype for tensor in tensors.values()} == {dtype}


@pytest.mark.parametrize("kind", HOLDS)
def test_which_formats_can_hold_a_config_is_known(kind):
    assert formats_of(CONFIGS[kind]) == HOLDS[kind]


@each_format
def test_a_name_leads_back_to_the_tensors_it_holds(name):
    config = CONFIGS["biases"] if name in HOLDS["biases"] else SMALL
    held = [canonical for own in format_shapes(name, config) for canonical in canonical_names(name, own)]
    assert sorted(held) == sorted(expected_shapes(config))
    for unknown in ("rope.freqs", "blk.0.ffn_gate_inp.weight", "layers.x.attention.wq.weight", "norm"):
        assert canonical_names(name, unknown) == ()
        assert own_name(name, unknown) == unknown


# The rows


@pytest.mark.parametrize("name", ["meta", "torchtune", "gguf"])
@pytest.mark.parametrize(("part", "heads"), [("q", 6), ("k", 2)])
def test_rows_of_q_and_k_are_in_adjacent_pairs_by_their_own_heads(name, part, heads):
    """HF(h, s·d/2 + i) = Meta(h, 2i + s)."""
    weights, half = make_weights(SMALL, 0, "loud"), SMALL.head_dim // 2
    canonical = f"model.layers.1.self_attn.{part}_proj.weight"
    own = to_format(name, SMALL, weights)[own_name(name, canonical)]
    rows = [(h, s, i) for h in range(heads) for s in range(2) for i in range(half)]
    assert len(rows) == len(own)
    for h, s, i in rows:
        assert torch.equal(weights[canonical][16 * h + s * half + i], own[16 * h + 2 * i + s])


def test_a_few_rows_counted_by_hand():
    """Head 1 of 2 has rows 16 to 31: its third pair is (18, 26) in half-split order, (20, 21) in adjacent."""
    k = "model.layers.0.self_attn.k_proj.weight"
    weights = make_weights(SMALL, 0, "loud")
    own = to_format("meta", SMALL, weights)["layers.0.attention.wk.weight"]
    assert torch.equal(own[[0, 1, 2, 3]], weights[k][[0, 8, 1, 9]])
    assert torch.equal(own[[20, 21]], weights[k][[18, 26]])


@pytest.mark.parametrize("name", ["meta", "torchtune", "gguf"])
def test_only_q_and_k_are_permuted(name):
    weights = make_weights(SMALL, 0, "loud")
    tensors = to_format(name, SMALL, weights)
    moved = {c.split(".")[-2] for c in weights if not torch.equal(tensors[own_name(name, c)], weights[c])}
    assert moved == {"q_proj", "k_proj"}


@pytest.mark.parametrize("name", ["huggingface", "llms-from-scratch"])
def test_these_are_other_names_and_nothing_else(name):
    weights = make_weights(SMALL, 0, "loud")
    tensors = to_format(name, SMALL, weights)
    assert all(tensors[own_name(name, canonical)] is weights[canonical] for canonical in weights)


def test_litgpt_has_q_then_k_then_v_in_one_tensor():
    weights = make_weights(SMALL, 0, "loud")
    fused = to_format("litgpt", SMALL, weights)["transformer.h.1.attn.qkv.weight"]
    for part, rows in {"q": slice(96), "k": slice(96, 128), "v": slice(128, 160)}.items():
        assert torch.equal(fused[rows], weights[f"model.layers.1.self_attn.{part}_proj.weight"])


def test_a_bias_moves_with_its_rows():
    config = CONFIGS["attention biases"]
    weights = make_weights(config, 0, "loud")
    own = to_format("gguf", config, weights)
    bias = weights["model.layers.0.self_attn.q_proj.bias"]
    assert torch.equal(own["blk.0.attn_q.bias"][[0, 1, 2]], bias[[0, 8, 1]])
    assert torch.equal(own["blk.0.attn_v.bias"], weights["model.layers.0.self_attn.v_proj.bias"])


# Tied unembeddings


@each_format
def test_a_tied_head_is_there_where_the_library_has_one_of_its_own(name):
    config = CONFIGS["tied"]
    weights = make_weights(config, 0, "loud")
    tensors = to_format(name, config, weights)
    more = {own: tensor for own, tensor in tensors.items() if canonical_names(name, own)[0] not in weights}
    equal(more, {HEADS[name]: weights["model.embed_tokens.weight"]} if name in HEADS else {})


@pytest.mark.parametrize("name", HEADS)
def test_a_tied_head_that_is_another_is_refused(name):
    config = CONFIGS["tied"]
    tensors = to_format(name, config, make_weights(config, 0, "loud"))
    embedding = own_name(name, "model.embed_tokens.weight")
    others = tensors | {HEADS[name]: tensors[embedding] + 1}
    refused(lambda: from_format(name, config, others), f"{HEADS[name]} differs from {embedding}")
    wider = tensors | {HEADS[name]: tensors[embedding].double()}
    refused(lambda: from_format(name, config, wider), f"{HEADS[name]} differs from {embedding}")


# What does not fit


@each_format
def test_missing_unexpected_and_misshapen_tensors_are_listed_by_their_own_names(name):
    tensors = to_format(name, SMALL, make_weights(SMALL, 0, "loud"))
    names = {c: own_name(name, c) for c in expected_shapes(SMALL)}
    gone, one_row = names["model.norm.weight"], names["model.layers.1.mlp.down_proj.weight"]
    wrong = {own: tensor for own, tensor in tensors.items() if own != gone}
    wrong[one_row] = tensors[one_row][:1]  # would broadcast
    wrong["rope.freqs"] = torch.ones(8)
    refused(
        lambda: from_format(name, SMALL, wrong),
        f"the {name} tensors do not fit the config: missing {gone} [48]",
        "unexpected rope.freqs [8]",
        f"{one_row} has shape [1, 80], expected [48, 80]",
    )


@each_format
def test_q_short_and_k_long_by_the_same_rows_are_seen_before_they_are_fused(name):
    q, k = (f"model.layers.0.self_attn.{part}_proj.weight" for part in "qk")
    weights = make_weights(SMALL, 0, "loud")
    wrong = weights | {q: weights[q][:-16], k: torch.cat([weights[k], weights[k][:16]])}
    refused(
        lambda: to_format(name, SMALL, wrong),
        f"{q} has shape [80, 48], expected [96, 48]",
        f"{k} has shape [48, 48], expected [32, 48]",
    )


def test_parts_of_one_tensor_of_two_dtypes_are_refused():
    k = "model.layers.1.self_attn.k_proj.weight"
    weights = make_weights(SMALL, 0, "loud")
    wrong = weights | {k: weights[k].bfloat16()}
    refused(
        lambda: to_format("litgpt", SMALL, wrong), "transformer.h.1.attn.qkv.weight", f"{k} torch.bfloat16"
    )
    assert to_format("meta", SMALL, wrong)["layers.1.attention.wk.weight"].dtype == torch.bfloat16


@pytest.mark.parametrize("call", [to_format, from_format])
def test_an_unknown_format_lists_those_that_exist(call):
    refused(lambda: call("pickle", SMALL, {}), "unknown format 'pickle'", ", ".join(FORMATS))


@pytest.mark.parametrize(
    ("name", "config", "why"),
    [
        ("meta", "mlp biases", "meta has no names for biases, and the config sets mlp_bias"),
        ("torchtune", "biases", "no names for biases, and the config sets attention_bias and mlp_bias"),
        (
            "litgpt",
            "attention biases",
            "in attention and MLP or in neither, and the config sets attention_bias",
        ),
    ],
)
def test_biases_that_a_format_cannot_hold_are_refused_with_those_that_can(name, config, why):
    refused(
        lambda: format_shapes(name, CONFIGS[config]), why, "formats that hold such weights are huggingface"
    )


def test_adjacent_pairs_of_a_part_of_the_head_are_refused():
    config = replace(SMALL, rope=Rope(partial_rotary_factor=0.5))
    assert formats_of(config) == ("huggingface", "litgpt", "llms-from-scratch")
    refused(lambda: format_shapes("gguf", config), "gguf turns whole heads", "partial_rotary_factor 0.5")


# The libraries' own


@pytest.mark.parametrize("config", [SMALL, CONFIGS["tied"]], ids=["untied", "tied"])
def test_litgpt_s_own_converters_give_the_same_tensors(config):
    weights, theirs, back = make_weights(config, 0, "loud"), {}, {}
    copy_weights_hf_llama(lit_config(config), {}, theirs, dict(weights))
    ours = to_format("litgpt", config, weights)
    equal(ours, theirs)
    copy_weights_llama(lit_config(config), back, ours, untie_weights=config.tie_word_embeddings)
    equal(from_format("litgpt", config, ours), back)


def test_the_gguf_package_has_the_same_names():
    theirs = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, SMALL.num_hidden_layers)
    for canonical in expected_shapes(CONFIGS["biases"]):
        assert theirs.get_name(canonical, (".weight", ".bias")) == own_name("gguf", canonical)


# Implementations


def test_the_reference_rotates_the_rows_of_meta_as_they_came():
    tensors = to_format("meta", SMALL, make_weights(SMALL, 0, "loud"))
    model = registry.get("reference").build_from("meta", SMALL, tensors)
    own = tensors["layers.0.attention.wq.weight"]
    assert torch.equal(model.llama.weights["model.layers.0.self_attn.q_proj.weight"], own)


def test_litgpt_loads_its_own_tensors_without_a_converter_and_strictly():
    litgpt = registry.get("litgpt")
    tensors = to_format("litgpt", SMALL, make_weights(SMALL, 0, "loud"))
    equal(litgpt.build_from("litgpt", SMALL, tensors)._gpt.state_dict(), tensors)
    del tensors["transformer.ln_f.weight"]
    with pytest.raises(RuntimeError, match=r"Missing key.*transformer\.ln_f\.weight"):
        litgpt.build_from("litgpt", SMALL, tensors)


@pytest.mark.parametrize("name", ["litgpt", "huggingface-eager"])
def test_who_takes_one_format_says_so(name):
    implementation = registry.get(name)
    with pytest.raises(Unsupported, match=f"loads {implementation.formats()[0]} tensors alone, not meta"):
        implementation.build_from("meta", SMALL, {})


def test_who_takes_none_does_not_offer_it():
    for call in (registry.get("torch").formats, User("mine.py", dict).formats):
        with pytest.raises(Unsupported, match="does not offer formats"):
            call()


class Mine:
    """A module of the user's that takes Meta's tensors."""

    def __init__(self, formats):
        self.formats = lambda: formats
        self.given = []

    def build_from(self, format_name, config, tensors):
        self.given.append((format_name, config, tensors))
        return lambda tokens: tokens


def test_a_user_s_build_from_is_given_tensors_of_its_own():
    mine, tensors = Mine(["meta"]), {"norm.weight": torch.ones(48)}
    user = User("mine.py", None, mine)
    assert user.formats() == ("meta",)
    assert user.build_from("meta", SMALL, tensors).dtype == torch.float32
    ((format_name, config, given),) = mine.given
    assert (format_name, config) == ("meta", SMALL)
    equal(given, tensors)
    assert given["norm.weight"] is not tensors["norm.weight"]


@pytest.mark.parametrize("formats", ["meta", ["mata"], None])
def test_what_a_user_s_formats_may_be_is_said(formats):
    refused(User("mine.py", None, Mine(formats)).formats, f"formats returned {formats!r}", "huggingface")
