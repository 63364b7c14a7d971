"""What every format calls the tensors of a Llama, and what else sets it apart from the canonical state_dict.

A format is a table of module names. What it does beyond renaming follows from three words: modules that
share a name are one tensor, rows may be in adjacent pairs, and a tied model may keep a head of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from reference_impl import LlamaConfig

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
# A canonical name: the index of its layer, its module (within the layer, or of the model), weight or bias.
CANONICAL = re.compile(r"(?:model\.layers\.(?P<layer>\d+)\.)?(?P<module>.+)\.(?P<kind>weight|bias)")


@dataclass(frozen=True, kw_only=True)
class Format:
    """How a library or a file spells a state_dict.

    Args:
        layer: what stands before the index in the names of a layer's tensors.
        model: canonical module → its own, outside the layers.
        block: the same within a layer. Modules of one name are one tensor: their rows follow one another in
            the order of this table.
        norm: what the parameter of a norm is called.
        adjacent: rows of q and k are in adjacent pairs.
        biases: whether attention and MLP may have biases independently, only together, or never.
        tied_head: a tied model has a tensor for its unembedding all the same, equal to the embedding.
    """

    layer: str
    model: Mapping[str, str]
    block: Mapping[str, str]
    norm: str = "weight"
    adjacent: bool = False
    biases: Literal["each", "together", "none"] = "none"
    tied_head: bool = False


TABLE: dict[str, Format] = {
    "huggingface": Format(
        layer="model.layers",
        model={name: name for name in ("model.embed_tokens", "model.norm", "lm_head")},
        block={
            name: name
            for name in (
                "input_layernorm",
                "self_attn.q_proj",
                "self_attn.k_proj",
                "self_attn.v_proj",
                "self_attn.o_proj",
                "post_attention_layernorm",
                "mlp.gate_proj",
                "mlp.up_proj",
                "mlp.down_proj",
            )
        },
        biases="each",
    ),
    "litgpt": Format(
        layer="transformer.h",
        model={
            "model.embed_tokens": "transformer.wte",
            "model.norm": "transformer.ln_f",
            "lm_head": "lm_head",
        },
        block={
            "input_layernorm": "norm_1",
            "self_attn.q_proj": "attn.qkv",
            "self_attn.k_proj": "attn.qkv",
            "self_attn.v_proj": "attn.qkv",
            "self_attn.o_proj": "attn.proj",
            "post_attention_layernorm": "norm_2",
            "mlp.gate_proj": "mlp.fc_1",
            "mlp.up_proj": "mlp.fc_2",
            "mlp.down_proj": "mlp.proj",
        },
        biases="together",
        tied_head=True,
    ),
    "llms-from-scratch": Format(
        layer="trf_blocks",
        model={"model.embed_tokens": "tok_emb", "model.norm": "final_norm", "lm_head": "out_head"},
        block={
            "input_layernorm": "norm1",
            "self_attn.q_proj": "att.W_query",
            "self_attn.k_proj": "att.W_key",
            "self_attn.v_proj": "att.W_value",
            "self_attn.o_proj": "att.out_proj",
            "post_attention_layernorm": "norm2",
            "mlp.gate_proj": "ff.fc1",
            "mlp.up_proj": "ff.fc2",
            "mlp.down_proj": "ff.fc3",
        },
        tied_head=True,
    ),
    "meta": Format(
        layer="layers",
        model={"model.embed_tokens": "tok_embeddings", "model.norm": "norm", "lm_head": "output"},
        block={
            "input_layernorm": "attention_norm",
            "self_attn.q_proj": "attention.wq",
            "self_attn.k_proj": "attention.wk",
            "self_attn.v_proj": "attention.wv",
            "self_attn.o_proj": "attention.wo",
            "post_attention_layernorm": "ffn_norm",
            "mlp.gate_proj": "feed_forward.w1",
            "mlp.up_proj": "feed_forward.w3",
            "mlp.down_proj": "feed_forward.w2",
        },
        adjacent=True,
        tied_head=True,
    ),
    "torchtune": Format(
        layer="layers",
        model={"model.embed_tokens": "tok_embeddings", "model.norm": "norm", "lm_head": "output"},
        block={
            "input_layernorm": "sa_norm",
            "self_attn.q_proj": "attn.q_proj",
            "self_attn.k_proj": "attn.k_proj",
            "self_attn.v_proj": "attn.v_proj",
            "self_attn.o_proj": "attn.output_proj",
            "post_attention_layernorm": "mlp_norm",
            "mlp.gate_proj": "mlp.w1",
            "mlp.up_proj": "mlp.w3",
            "mlp.down_proj": "mlp.w2",
        },
        norm="scale",
        adjacent=True,
    ),
    "gguf": Format(
        layer="blk",
        model={"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"},
        block={
            "input_layernorm": "attn_norm",
            "self_attn.q_proj": "attn_q",
            "self_attn.k_proj": "attn_k",
            "self_attn.v_proj": "attn_v",
            "self_attn.o_proj": "attn_output",
            "post_attention_layernorm": "ffn_norm",
            "mlp.gate_proj": "ffn_gate",
            "mlp.up_proj": "ffn_up",
            "mlp.down_proj": "ffn_down",
        },
        adjacent=True,
        biases="each",
    ),
}
FORMATS = tuple(TABLE)


def named(format_name: str) -> Format:
    """The format of that name.

    Raises:
        ValueError: there is none; lists those that exist.
    """
    if format_name not in TABLE:
        raise ValueError(f"unknown format {format_name!r}, expected one of {', '.join(FORMATS)}")
    return TABLE[format_name]


def own_name(format_name: str, canonical: str) -> str:
    """What a format calls a canonical tensor; the name itself where a Llama has no such tensor."""
    spelt, found = named(format_name), CANONICAL.fullmatch(canonical)
    layer, module, kind = found.group("layer", "module", "kind") if found else (None, "", "")
    names, prefix = (spelt.model, "") if layer is None else (spelt.block, f"{spelt.layer}.{layer}.")
    if module not in names:
        return canonical
    own = spelt.norm if module.endswith("norm") and kind == "weight" else kind
    return f"{prefix}{names[module]}.{own}"


def canonical_names(format_name: str, own: str) -> tuple[str, ...]:
    """The canonical tensors that a tensor of a format holds, in the order of their rows.

    Empty where a Llama has no such tensor.
    """
    spelt = named(format_name)
    names, prefix, rest = spelt.model, "", own
    if own.startswith(f"{spelt.layer}."):
        layer, _, rest = own.removeprefix(f"{spelt.layer}.").partition(".")
        names, prefix = spelt.block, f"model.layers.{layer}."
    modules = [module for module, its in names.items() if its == rest.rpartition(".")[0]]
    named_so = [f"{prefix}{module}.{kind}" for module in modules for kind in ("weight", "bias")]
    return tuple(name for name in named_so if own_name(format_name, name) == own)


def unheld(format_name: str, config: LlamaConfig) -> str:
    """Why a format cannot hold the weights of a config; "" where it can."""
    spelt, biases = named(format_name), (config.attention_bias, config.mlp_bias)
    given = " and ".join(n for n in ("attention_bias", "mlp_bias") if getattr(config, n))
    if any(biases) and spelt.biases == "none":
        return f"{format_name} has no names for biases, and the config sets {given}"
    if biases[0] != biases[1] and spelt.biases == "together":
        return (
            f"{format_name} has biases in attention and MLP or in neither, and the config sets {given} alone"
        )
    if spelt.adjacent and config.rope.partial_rotary_factor != 1:
        return (
            f"{format_name} turns whole heads, and the config sets partial_rotary_factor "
            f"{config.rope.partial_rotary_factor}"
        )
    return ""
