"""Wrong loading."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from conformance.faults.catalogue import Fault, Weights, load_fault, model_fault, ops_fault
from conformance.implementations.base import Held
from conformance.implementations.reference import ReferenceModel
from conformance.weights import expected_shapes
from reference_impl import KVCache, Llama, LlamaConfig
from reference_impl.block import Step, block
from reference_impl.rope import to_adjacent, to_half_split

Loaded = tuple[LlamaConfig, Weights]
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def renamed(config: LlamaConfig, weights: Weights, **exchange: str) -> Loaded:
    """Tensors of one name part put where another is expected."""
    out = dict(weights)
    for name in weights:
        for here, there in exchange.items():
            if here in name:
                out[name] = weights[name.replace(here, there)]
    return config, out


def broadcast(config: LlamaConfig, weights: Weights) -> Loaded:
    """copy_ into a tensor of the right shape, which broadcasts."""
    shapes = expected_shapes(config)
    return config, {
        n: torch.empty(shapes[n]).to(w).copy_(w) if n in shapes else w for n, w in weights.items()
    }


def lenient(config: LlamaConfig, weights: Weights) -> Loaded:
    """Missing tensors left at their initial values, unexpected ones ignored."""
    shapes = expected_shapes(config)
    if not weights:
        return config, weights
    dtype = next(iter(weights.values())).dtype
    return config, {n: weights[n] if n in weights else torch.ones(s, dtype=dtype) for n, s in shapes.items()}


def permuted(config: LlamaConfig, weights: Weights, kv_heads: int | None, *, v: bool = False) -> Loaded:
    """q and k permuted as if they came from Meta's layout; or k with a wrong head count."""
    counts = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    if kv_heads is not None:
        counts = {"k_proj": kv_heads}
    if v:
        counts = {"v_proj": config.num_key_value_heads}
    out = dict(weights)
    for name in weights:
        for part, heads in counts.items():
            if part in name:
                out[name] = to_half_split(weights[name], heads)
    return config, out


def first_layer_everywhere(config: LlamaConfig, weights: Weights) -> Loaded:
    """Layer 0's weights in every layer."""
    layers = {
        n: ".".join(["model.layers.0", *n.split(".")[3:]]) for n in weights if n.startswith("model.layers.")
    }
    return config, {n: weights[layers.get(n, n)] for n in weights}


def shards_stacked(config: LlamaConfig, weights: Weights) -> Loaded:
    """The embedding from two shards of half its width, joined along the vocabulary instead."""
    return config, {
        n: torch.cat(w.chunk(2, dim=1)).reshape(w.shape) if n == EMBEDDING else w for n, w in weights.items()
    }


def k_from_q(config: LlamaConfig, weights: Weights) -> Loaded:
    """k projected by the first rows of q."""
    return config, {
        n: weights[n.replace("k_proj", "q_proj")][: len(w)] if "k_proj" in n else w
        for n, w in weights.items()
    }


def layers_exchanged(config: LlamaConfig, weights: Weights) -> Loaded:
    """The first two layers in each other's place."""
    exchange = {"model.layers.0.": "model.layers.1.", "model.layers.1.": "model.layers.0."}
    return config, renamed(config, weights, **exchange)[1]


def rounded(config: LlamaConfig, weights: Weights) -> Loaded:
    """Weights taken through float16 on the way in, or bfloat16 where they are float16."""
    half, other = torch.float16, torch.bfloat16
    return config, {n: w.to(other if w.dtype == half else half).to(w.dtype) for n, w in weights.items()}


def two_layers(config: LlamaConfig, weights: Weights) -> Loaded:
    """The number of layers of a default."""
    fewer = replace(config, num_hidden_layers=min(2, config.num_hidden_layers))
    shapes = expected_shapes(fewer)
    return fewer, {n: w for n, w in weights.items() if n in shapes}


def default_heads(config: LlamaConfig, weights: Weights) -> Loaded:
    """Rows brought to the other pair layout by the heads of the config, and back by those of a default."""
    counts = {"q_proj": (config.num_attention_heads, 6), "k_proj": (config.num_key_value_heads, 2)}
    out = dict(weights)
    for name, weight in weights.items():
        for part, (right, default) in counts.items():
            if part in name and weight.shape[0] % (2 * default) == 0:
                out[name] = to_half_split(to_adjacent(weight, right), default)
    return config, out


def default_width(config: LlamaConfig, weights: Weights) -> Loaded:
    """No more of the feed-forward network than a default is wide."""
    cut = {"gate_proj": 0, "up_proj": 0, "down_proj": 1}
    out = {
        n: w.narrow(cut[part], 0, 80) if (part := n.split(".")[-2]) in cut else w for n, w in weights.items()
    }
    return replace(config, intermediate_size=80), out


def norm_without_weight(x: Tensor, weights: Weights, step: Step) -> Tensor:
    """The second norm of a layer divides, and that is all."""
    name = "post_attention_layernorm.weight"
    return block(x, {**weights, name: torch.ones_like(weights[name])}, step)


class Pooler(ReferenceModel):
    """A parameter more than the model has, which nothing uses."""

    def held(self) -> list[Held]:
        """See Model.held."""
        own = super().held()
        extra = torch.ones(self.llama.config.hidden_size, dtype=self.llama.dtype)
        return [*own, Held(name="pooler.weight", tensor=extra, kind="parameter", saved=True)]


class PlainTensor(ReferenceModel):
    """The last norm's weight kept as a plain tensor: used, but neither trained nor saved."""

    def held(self) -> list[Held]:
        """See Model.held."""
        return [held for held in super().held() if held.name != "model.norm.weight"]


class PaddedVocabulary(ReferenceModel):
    """A vocabulary padded to a multiple of 64; the logits are cut off to the right number."""

    def __init__(self, llama: Llama) -> None:
        super().__init__(llama)
        rows = -llama.config.vocab_size % 64
        for name in {EMBEDDING, HEAD} & set(llama.weights):
            llama.weights[name] = functional.pad(llama.weights[name], (0, 0, 0, rows))

    def logits(
        self, tokens_BT: Tensor, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """See Model.logits."""
        return super().logits(tokens_BT, positions, mask)[..., : self.llama.config.vocab_size]

    def step(self, tokens_BT: Tensor, cache: KVCache) -> Tensor:
        """See Model.step."""
        return super().step(tokens_BT, cache)[..., : self.llama.config.vocab_size]


FAULTS: list[Fault] = [
    load_fault("weights.broadcast", "WEIGHT-1", "classical", broadcast),
    load_fault("weights.lenient", "WEIGHT-2", "tinygrad/tinygrad#13796", lenient),
    load_fault(
        "weights.norms-exchanged",
        "LOGITS-1",
        "classical",
        lambda c, w: renamed(
            c, w, input_layernorm="post_attention_layernorm", post_attention_layernorm="input_layernorm"
        ),
    ),
    load_fault(
        "weights.norm-reused",
        "LOGITS-1",
        "classical",
        lambda c, w: renamed(c, w, post_attention_layernorm="input_layernorm"),
    ),
    load_fault(
        "weights.gate-up-exchanged",
        "MLP-2",
        "NVIDIA/TensorRT-LLM#1842",
        lambda c, w: renamed(c, w, gate_proj="up_proj", up_proj="gate_proj"),
    ),
    load_fault(
        "weights.k-v-exchanged",
        "ROPE-8",
        "classical",
        lambda c, w: renamed(c, w, k_proj="v_proj", v_proj="k_proj"),
    ),
    load_fault(
        "weights.qk-permuted", "LOGITS-1", "AI-Hypercomputer/maxtext#1774", lambda c, w: permuted(c, w, None)
    ),
    load_fault(
        "weights.k-permuted-with-h",
        "LOGITS-1",
        "huggingface/transformers#31788",
        lambda c, w: permuted(c, w, c.num_attention_heads),
    ),
    load_fault("weights.v-permuted", "LOGITS-1", "classical", lambda c, w: permuted(c, w, None, v=True)),
    load_fault("weights.layer-0-everywhere", "LOGITS-1", "classical", first_layer_everywhere),
    load_fault(
        "weights.shards-stacked", "LOGITS-1", "AI-Hypercomputer/jetstream-pytorch#101", shards_stacked
    ),
    load_fault("weights.k-from-q", "LOGITS-1", "classical", k_from_q),
    ops_fault("weights.norm-idle", "WEIGHT-3", block=norm_without_weight),
    ops_fault(
        "weights.bias-idle",
        "WEIGHT-3",
        "mlc-ai/mlc-llm#3494",
        linear=lambda x, w, _: functional.linear(x, w),
    ),
    load_fault(
        "weights.k-for-v",
        "WEIGHT-4",
        "classical",
        lambda c, w: renamed(c, w, v_proj="k_proj"),
    ),
    load_fault("weights.layers-exchanged", "WEIGHT-4", "classical", layers_exchanged),
    model_fault("weights.pooler", "WEIGHT-6", "classical", Pooler),
    model_fault("weights.plain-tensor", "WEIGHT-6", "classical", PlainTensor),
    model_fault("weights.vocabulary-padded", "WEIGHT-6", "classical", PaddedVocabulary),
    load_fault(
        "weights.kept-in-float32",
        "WEIGHT-8",
        "huggingface/transformers#34743",
        lambda c, w: (c, {n: t.float() for n, t in w.items()}),
    ),
    load_fault("weights.rounded", "WEIGHT-8", "TransformerLensOrg/TransformerLens#615", rounded),
    load_fault("weights.two-layers", "WEIGHT-9", "classical", two_layers),
    load_fault("weights.default-heads", "WEIGHT-9", "rasbt/LLMs-from-scratch#747", default_heads),
    load_fault("weights.default-width", "WEIGHT-9", "classical", default_width),
]
