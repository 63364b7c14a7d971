"""The arrows of a model: every step from tap to tap, each as a function of the taps it starts from.

Shape suffixes: B batch, T tokens, D hidden, H query heads, G kv heads, d head width, F intermediate.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from conformance.numerics import answers
from reference_impl import Llama, LlamaConfig
from reference_impl.block import Weights

TOKENS = "tokens"  # what the first arrow starts from
STREAM = ".mlp_residual"  # where a layer ends: all that follows starts from there


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to compute an arrow.

    Args:
        model: the reference in some dtype under some convention.
        order: in which the arrow's sum is taken; 0 as written.
    """

    model: Llama
    order: int = 0


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where an arrow is computed.

    Args:
        way: how.
        weights: of its layer; of the whole model outside the layers.
    """

    way: Way
    weights: Weights

    def linear(self, x: Tensor, name: str) -> Tensor:
        """x · Wᵀ (+ b where the layer has one), summed in the order of the way."""
        weight, bias = self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias")
        if self.way.order:
            order = answers.shuffle(x.shape[-1], self.way.order)
            x, weight = x[..., order], weight[:, order]
        return self.way.model.ops.linear(x, weight, bias)


Step = Callable[..., Tensor]  # (place, *inputs) → the tap


@dataclass(frozen=True, kw_only=True)
class Arrow:
    """One step of a model.

    Args:
        tap: what it leads to.
        inputs: the taps it starts from.
        step: computes the tap from them.
        varies: the fields of Ops in which accepted conventions may differ here.
        sums: whether there is a sum whose order is free.
        layer: whose weights it takes; None outside the layers.
    """

    tap: str
    inputs: tuple[str, ...]
    step: Step
    varies: tuple[str, ...] = ()
    sums: bool = False
    layer: int | None = None

    def answer(self, taps: Mapping[str, Tensor], way: Way) -> Tensor:
        """The tap as it follows from these inputs, which are cast to the dtype of the way."""
        model = way.model
        weights = model.weights if self.layer is None else model.layers[self.layer]
        given = [taps[name] for name in self.inputs]
        cast = (t.to(model.dtype) if t.is_floating_point() else t for t in given)
        return self.step(Place(way=way, weights=weights), *cast)


def distinct(steps: Iterable[Arrow], ways: Iterable[Way]) -> list[Way]:
    """Those of the ways that differ on one of these arrows."""
    steps, found = list(steps), dict[object, Way]()
    fields = sorted({name for step in steps for name in step.varies})
    sums = any(step.sums for step in steps)
    for way in ways:
        convention = tuple(getattr(way.model.ops, name) for name in fields)
        found.setdefault((convention, way.order if sums else 0), way)
    return list(found.values())


def embedding(at: Place, tokens_BT: Tensor) -> Tensor:
    """Rows of the embedding."""
    return at.weights["model.embed_tokens.weight"][tokens_BT]


def norm(name: str) -> Step:
    """RMSNorm by the weight of that name."""

    def step(at: Place, x_BTD: Tensor) -> Tensor:
        model, order = at.way.model, at.way.order
        return answers.norm_of(
            x_BTD, at.weights[f"{name}.weight"], model.config.rms_norm_eps, model.ops, order
        )

    return step


def projection(name: str) -> Step:
    """The projection of that name."""
    return lambda at, x: at.linear(x, name)


def heads(name: str) -> Step:
    """The same, split into heads; [B, heads, T, d]."""

    def step(at: Place, x_BTD: Tensor) -> Tensor:
        y_BTC, head_dim = at.linear(x_BTD, name), at.way.model.config.head_dim
        return y_BTC.view(*y_BTC.shape[:2], -1, head_dim).transpose(1, 2)

    return step


def rotation(at: Place, x_BHTd: Tensor) -> Tensor:
    """The rotation of q or k at positions 0 … T−1, by tables in the dtype of the way."""
    model = at.way.model
    tables = model.ops.tables(model.inv_freq, torch.arange(x_BHTd.shape[2]), model.dtype)
    return model.ops.apply_rope(x_BHTd, x_BHTd, *tables)[0]


def attention(at: Place, q_BHTd: Tensor, k_BGTd: Tensor, v_BGTd: Tensor) -> Tensor:
    """Causal attention, the heads side by side; [B, T, H·d]."""
    model = at.way.model
    mask = model.mask(q_BHTd.shape[2], k_BGTd.shape[2])
    y_BHTd = answers.attention_of(q_BHTd, k_BGTd, v_BGTd, mask, model.ops, at.way.order)
    return y_BHTd.transpose(1, 2).flatten(2)


def residual(at: Place, stream_BTD: Tensor, branch_BTD: Tensor) -> Tensor:
    """The stream and a branch added."""
    return at.way.model.ops.add(stream_BTD, branch_BTD)


def gated(at: Place, gate_BTF: Tensor, up_BTF: Tensor) -> Tensor:
    """act(gate) ⊙ up."""
    model = at.way.model
    return model.ops.gated(gate_BTF, up_BTF, model.config.hidden_act, model.ops)


def unembedding(at: Place, x_BTD: Tensor) -> Tensor:
    """Logits by the unembedding, which is the embedding where they are tied."""
    return at.linear(x_BTD, "model.embed_tokens" if at.way.model.config.tie_word_embeddings else "lm_head")


NORM, ATTENTION = ("rms_norm",), ("attention",)  # where released implementations differ
# Tap, what it starts from, step, where conventions differ, whether it sums; the stream is what comes in.
LAYER: tuple[tuple[str, str, Step, tuple[str, ...], bool], ...] = (
    ("attn_norm", "stream", norm("input_layernorm"), NORM, True),
    ("q", "attn_norm", heads("self_attn.q_proj"), (), True),
    ("k", "attn_norm", heads("self_attn.k_proj"), (), True),
    ("v", "attn_norm", heads("self_attn.v_proj"), (), True),
    ("q_rot", "q", rotation, (), False),
    ("k_rot", "k", rotation, (), False),
    ("attention", "q_rot k_rot v", attention, ATTENTION, True),
    ("attn_out", "attention", projection("self_attn.o_proj"), (), True),
    ("attn_residual", "stream attn_out", residual, (), False),
    ("mlp_norm", "attn_residual", norm("post_attention_layernorm"), NORM, True),
    ("gate", "mlp_norm", projection("mlp.gate_proj"), (), True),
    ("up", "mlp_norm", projection("mlp.up_proj"), (), True),
    ("gated", "gate up", gated, (), False),
    ("mlp_out", "gated", projection("mlp.down_proj"), (), True),
    ("mlp_residual", "attn_residual mlp_out", residual, (), False),
)


@functools.lru_cache(maxsize=64)
def arrows(config: LlamaConfig) -> tuple[Arrow, ...]:
    """Every arrow of a model in causal order: what an arrow starts from comes before it."""
    found = [Arrow(tap="embedding", inputs=(TOKENS,), step=embedding)]
    stream = "embedding"
    for layer in range(config.num_hidden_layers):
        names = {"stream": stream}
        for tap, inputs, step, varies, sums in LAYER:
            start = tuple(names[name] for name in inputs.split())
            names[tap] = f"layers.{layer}.{tap}"
            found.append(
                Arrow(tap=names[tap], inputs=start, step=step, varies=varies, sums=sums, layer=layer)
            )
        stream = names["mlp_residual"]
    return (
        *found,
        Arrow(tap="final_norm", inputs=(stream,), step=norm("model.norm"), varies=NORM, sums=True),
        Arrow(tap="logits", inputs=("final_norm",), step=unembedding, sums=True),
    )
