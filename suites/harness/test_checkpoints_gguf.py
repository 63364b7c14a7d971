"""GGUF files: dequantised, pair layout undone, frequency rule derived; the small ones here are our own."""

import re
import struct
from dataclasses import replace

import numpy as np
import pytest
import torch

import conformance.builtin_variants  # noqa: F401 - registers them
from conformance.checkpoints import load
from conformance.checkpoints.gguf_header import read_header
from conformance.checkpoints.gguf_rope import rope_from_divisors
from conformance.checkpoints.tokenizer import from_gguf
from conformance.variants import variants
from conformance.weight_maps import own_name
from conformance.weights import make_weights
from reference_impl import LlamaConfig, Rope
from reference_impl.rope import inv_freq, to_adjacent

gguf = pytest.importorskip("gguf")

SMALL = LlamaConfig(
    vocab_size=67,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=16,
    rope=Rope(rope_theta=5000.0),
    tie_word_embeddings=True,
)
LLAMA3 = Rope(
    rope_theta=5e5,
    rope_type="llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=8192,
)


def write_gguf(path, config=SMALL, *, seed=0, add=(), drop=(), arch="llama", quantise=None, tensors=None):
    """A GGUF as llama.cpp's converter writes it: adjacent pairs, float32 unless quantise(name) differs."""
    weights = make_weights(config, seed, "loud")
    keys = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.key_length": config.head_dim,
        "rope.dimension_count": config.head_dim,
        "rope.freq_base": config.rope.rope_theta,
        "vocab_size": config.vocab_size,
        **dict(add),
    }
    writer = gguf.GGUFWriter(path, arch)
    kinds = {
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    for key, value in keys.items():
        if key not in drop:
            kinds[type(value)](key if key.startswith("split") else f"llama.{key}", value)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, value in weights.items():
        part = name.split(".")[-2]
        rows = (to_adjacent(value, heads[part]) if part in heads else value).numpy()
        kind = quantise(name) if quantise else gguf.GGMLQuantizationType.F32
        data = rows if kind == gguf.GGMLQuantizationType.F32 else gguf.quants.quantize(rows, kind)
        writer.add_tensor(own_name("gguf", name), data, raw_dtype=kind)
    for name, value in (tensors or {}).items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, weights


def refused(path, *words):
    with pytest.raises(ValueError, match=".*".join(map(re.escape, words))):
        load(str(path))


def divisors(rope, head_dim):
    plain = inv_freq(Rope(rope_theta=rope.rope_theta), head_dim, torch.float64)
    return (plain / inv_freq(rope, head_dim, torch.float64)).float()


# Small files


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_a_gguf_comes_back_to_the_bit(tmp_path, tied):
    config = replace(SMALL, tie_word_embeddings=tied)
    path, weights = write_gguf(tmp_path / "model.gguf", config)
    read = load(str(path))
    assert read.config == config
    assert read.weights.keys() == weights.keys()
    assert all(torch.equal(read.weights[name], weights[name]) for name in weights)


def test_a_small_gguf_is_what_transformers_reads(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    config = replace(SMALL, hidden_size=96, tie_word_embeddings=False)  # transformers wants H·d = D
    path, _ = write_gguf(tmp_path / "model.gguf", config)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name)
    theirs = model.state_dict()
    ours = load(str(path)).weights
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(theirs[name], ours[name]) for name in ours)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0"])
def test_what_is_not_float32_is_dequantised_to_it(tmp_path, kind):
    quantisation = gguf.GGMLQuantizationType[kind]

    def quantise(name):
        return gguf.GGMLQuantizationType.F32 if "norm" in name else quantisation

    path, weights = write_gguf(tmp_path / "model.gguf", quantise=quantise)
    read = load(str(path)).weights
    name = "model.layers.1.mlp.down_proj.weight"
    want = gguf.quants.dequantize(gguf.quants.quantize(weights[name].numpy(), quantisation), quantisation)
    assert torch.equal(read[name], torch.from_numpy(want))
    assert {value.dtype for value in read.values()} == {torch.float32}
    assert not torch.equal(read[name], weights[name])


def test_biases_are_read_and_permuted_like_their_rows(tmp_path):
    config = replace(SMALL, attention_bias=True, mlp_bias=True)
    path, weights = write_gguf(tmp_path / "model.gguf", config)
    read = load(str(path))
    assert read.config == config
    assert all(torch.equal(read.weights[name], weights[name]) for name in weights)


def test_our_header_is_the_gguf_package_s(tmp_path):
    path, _ = write_gguf(tmp_path / "model.gguf", add=[("test.list", [1, 2, 3]), ("test.words", ["a", "b"])])
    theirs, ours = gguf.GGUFReader(path), read_header(path)
    own = [key for key in theirs.fields if not key.startswith("GGUF.")]
    assert {key: theirs.fields[key].contents() for key in own} == ours.metadata
    assert {t.name: (t.data_offset, t.n_bytes, tuple(t.shape[::-1].tolist())) for t in theirs.tensors} == {
        name: (info.offset, info.nbytes, info.shape) for name, info in ours.tensors.items()
    }


@pytest.mark.parametrize("drop", [["attention.key_length"], ["rope.dimension_count"], ["vocab_size"]])
def test_what_is_said_twice_may_be_said_once(tmp_path, drop):
    path, _ = write_gguf(tmp_path / "model.gguf", drop=drop)
    assert load(str(path)).config == SMALL


def test_sizes_given_layer_by_layer_are_one_size(tmp_path):
    path, _ = write_gguf(tmp_path / "model.gguf", add=[("attention.head_count_kv", [2, 2])])
    assert load(str(path)).config == SMALL
    path, _ = write_gguf(tmp_path / "other.gguf", add=[("attention.head_count_kv", [2, 6])])
    refused(path, "attention.head_count_kv differs between layers: [2, 6]")


# The frequency rule


@pytest.mark.parametrize("shape", ["real", "gqa"])
@pytest.mark.parametrize("variant", variants(), ids=lambda v: v.name)
def test_the_rule_of_every_variant_follows_from_its_divisors(variant, shape):
    config = variant.shape(shape)
    rope, width = config.rope, config.head_dim
    assert rope_from_divisors(divisors(rope, width), rope.rope_theta, width) == rope


def test_a_rule_with_other_constants_is_fitted():
    rope = replace(LLAMA3, factor=6.0, high_freq_factor=3.0, original_max_position_embeddings=4096)
    assert rope_from_divisors(divisors(rope, 64), 5e5, 64) == rope


def test_the_released_constants_are_taken_where_no_pair_lies_in_the_band():
    assert rope_from_divisors(divisors(LLAMA3, 6), 5e5, 6) == LLAMA3


def test_a_rule_is_derived_up_to_the_scale_that_changes_nothing():
    rope = replace(LLAMA3, low_freq_factor=2.0, high_freq_factor=8.0, original_max_position_embeddings=16384)
    assert rope_from_divisors(divisors(rope, 64), 5e5, 64) == LLAMA3


def test_divisors_in_a_file_become_the_llama3_rule(tmp_path):
    config = replace(SMALL, rope=LLAMA3)
    extra = {"rope_freqs.weight": divisors(LLAMA3, 16).numpy()}
    path, _ = write_gguf(tmp_path / "model.gguf", config, tensors=extra)
    assert load(str(path)).config == config


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.linspace(1, 2, 8, dtype=np.float32), "neither the linear nor the llama3 rule"),
        (np.full(8, np.nan, dtype=np.float32), "neither the linear nor the llama3 rule"),
        (np.ones(7, dtype=np.float32), "rope_freqs.weight has shape [7], expected [8]"),
    ],
)
def test_divisors_that_no_rule_gives_are_refused(tmp_path, values, message):
    path, _ = write_gguf(tmp_path / "model.gguf", tensors={"rope_freqs.weight": values})
    refused(path, str(path), message)


@pytest.mark.parametrize(
    "add",
    [
        [("rope.scaling.type", "linear"), ("rope.scaling.factor", 4.0)],
        [("rope.scaling.factor", 4.0)],
        [("rope.scale_linear", 4.0)],
    ],
)
def test_linear_scaling_is_read_in_all_its_spellings(tmp_path, add):
    path, _ = write_gguf(tmp_path / "model.gguf", add=add)
    assert load(str(path)).config.rope == Rope(rope_theta=5000.0, rope_type="linear", factor=4.0)


@pytest.mark.parametrize("add", [[("rope.scaling.type", "none"), ("rope.scaling.factor", 4.0)], []])
def test_no_scaling_is_the_default_rule(tmp_path, add):
    path, _ = write_gguf(tmp_path / "model.gguf", add=add)
    assert load(str(path)).config.rope == Rope(rope_theta=5000.0)


# Refusals


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"arch": "qwen2"}, ["general.architecture is 'qwen2', expected 'llama'"]),
        ({"add": [("expert_count", 8)]}, ["mixture of 8 experts"]),
        ({"add": [("split.count", 3)]}, ["one of 3 parts", "--merge"]),
        ({"drop": ["block_count"]}, ["metadata lacks llama.block_count"]),
        ({"add": [("attention.head_count_kv", 4)]}, ["no multiple of num_key_value_heads 4"]),
        ({"add": [("rope.dimension_count", 8)]}, ["head widths differ", "rotates the whole head"]),
        ({"add": [("attention.key_length", 15), ("rope.dimension_count", 15)]}, ["head_dim is 15"]),
        ({"add": [("vocab_size", 99)]}, ["model.embed_tokens.weight has shape [67, 64], expected [99, 64]"]),
        ({"add": [("block_count", 3)]}, ["missing model.layers.2.input_layernorm.weight"]),
        ({"add": [("rope.scaling.type", "yarn")]}, ["scaling.type is 'yarn'", "none, linear"]),
        ({"add": [("rope.scaling.yarn_log_multiplier", 0.1)]}, ["yarn_log_multiplier", "would be dropped"]),
        (
            {"tensors": {"blk.0.ffn_gate_inp.weight": np.ones((2, 64), np.float32)}},
            ["unexpected blk.0.ffn_gate"],
        ),
        ({"tensors": {"output.weight": np.ones((67, 64), np.int32)}}, ["output.weight is I32", "dequantise"]),
        ({"add": [("block_count", 2**31)]}, ["20 tensors cannot be the 2147483648 layers"]),
        ({"tensors": {"output.weight": np.ones((9, 64), np.float32)}}, ["lm_head.weight has shape [9, 64]"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_gguf_that_is_no_whole_llama_is_refused(tmp_path, change, words):
    path, _ = write_gguf(tmp_path / "model.gguf", **change)
    refused(path, str(path), *words)


def test_linear_scaling_and_divisors_together_are_refused(tmp_path):
    extra = {"rope_freqs.weight": divisors(LLAMA3, 16).numpy()}
    path, _ = write_gguf(tmp_path / "model.gguf", add=[("rope.scaling.factor", 4.0)], tensors=extra)
    refused(path, "one rule at a time")


def test_a_file_truncated_anywhere_is_refused_with_what_to_do(tmp_path):
    path, _ = write_gguf(tmp_path / "model.gguf", add=[("test.words", ["alpha", "beta"])])
    data, tensors = path.read_bytes(), read_header(path).tensors
    for size in [0, 3, 4, 8, 23, *range(24, tensors["token_embd.weight"].offset, 7)]:
        path.write_bytes(data[:size])
        refused(path, str(path), "fetch it again")


def test_a_file_truncated_in_its_data_names_the_tensor(tmp_path):
    path, _ = write_gguf(tmp_path / "model.gguf")
    data, tensors = path.read_bytes(), read_header(path).tensors
    name, info = max(tensors.items(), key=lambda item: item[1].offset)
    end = info.offset + info.nbytes
    path.write_bytes(data[: end - 1])
    refused(path, f"{name} ends at byte {end}, the file at byte {end - 1}", "truncated, fetch it again")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK\x03\x04 some zip", "begins with b'PK\\x03\\x04', expected b'GGUF'"),
        (b"version https://git-lfs.github.com/spec/v1\n", "run git lfs pull"),
        (struct.pack("<4sIQQ", b"GGUF", 1, 0, 0), "GGUF version 1, expected one of (2, 3)"),
        (struct.pack(">4sIQQ", b"GGUF", 3, 0, 0), "in little-endian order"),
        (struct.pack("<4sIQQQ1sI", b"GGUF", 3, 0, 1, 1, b"k", 99), "metadata k has unknown type 99"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 0), "general.architecture is None"),
    ],
)
def test_what_is_no_gguf_or_another_version_is_refused(tmp_path, content, message):
    (tmp_path / "model.gguf").write_bytes(content)
    refused(tmp_path / "model.gguf", message)


# Tokenizers


@pytest.mark.parametrize(
    ("model", "pre", "what"), [("llama", None, "'llama'"), ("gpt2", "tekken", "'tekken'")]
)
def test_a_tokenizer_that_is_not_known_is_none_with_the_reason(model, pre, what):
    found, notes = from_gguf({"tokenizer.ggml.model": model, "tokenizer.ggml.pre": pre})
    assert found is None
    assert what in notes[0]


def alphabet(pre, **more):
    tokens = ["<s>", *sorted(chr(c) for c in range(33, 127)), "Ġ", "he", "12", "Ċ", "xyz"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": ["h e", "1 2"],
        "tokenizer.ggml.token_type": [3] + [1] * (len(tokens) - 1),
        "tokenizer.ggml.bos_token_id": 0,
        **more,
    }


@pytest.mark.parametrize(
    ("pre", "words"),
    [
        ("gpt-2", ["x", "y", "z", "Ġ", "12"]),
        ("smollm", ["x", "y", "z", "Ġ", "1", "2"]),
        ("llama-bpe", ["<s>", "xyz", "Ġ", "12"]),  # whole words of the vocabulary need no merges
    ],
)
def test_text_is_cut_as_the_pre_tokenizer_says(pre, words):
    pytest.importorskip("tokenizers")
    metadata = alphabet(pre)
    found, _ = from_gguf(metadata)
    assert [metadata["tokenizer.ggml.tokens"][i] for i in found.encode("xyz 12")] == words
    assert found.decode(found.encode("he 12\n")) == "he 12\n"


def test_the_begin_token_comes_where_the_file_says_so():
    pytest.importorskip("tokenizers")
    found, _ = from_gguf(alphabet("gpt-2", **{"tokenizer.ggml.add_bos_token": True}))
    assert found.encode("<s>he")[:2] == [0, 0]
    assert found.decode([0, 0]) == ""
