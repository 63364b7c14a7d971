"""A Llama as tutorials print it: one file of plain torch.nn, with the names of Hugging Face's state_dict.

    pytest suites/ --impl docs/examples/tutorial_llama.py

build() is all that the suites need; parts named as in docs/your-own.md are asked on their own besides.

Shapes: B batch, T tokens, S keys, H query heads, G kv heads, d head width.
"""

import torch
from torch import nn
from torch.nn import functional

from conformance import Unsupported


def rms_norm(x, weight, eps):
    """x [..., n] over its own root mean square, times weight [n]."""
    wide = x.float()  # squares of 16-bit numbers overflow, and long sums of them stop growing
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


def silu_mul(gate, up):
    """The gate of SwiGLU."""
    return functional.silu(gate) * up


def frequencies(config):
    """How far each pair of a head turns per position, [d/2]."""
    rope = config.rope
    if rope.partial_rotary_factor != 1:
        raise Unsupported("this Llama rotates whole heads")
    inv_freq = 1.0 / rope.rope_theta ** (torch.arange(0, config.head_dim, 2).float() / config.head_dim)
    if rope.rope_type == "default":
        return inv_freq
    if rope.rope_type == "linear":
        return inv_freq / rope.factor
    if rope.rope_type != "llama3":
        raise Unsupported(f"this Llama knows no rope_type {rope.rope_type!r}")
    # Pairs of many turns in the original context are kept, those of few are slowed down, others blended.
    turns = rope.original_max_position_embeddings * inv_freq / (2 * torch.pi)
    keep = ((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)).clamp(0, 1)
    return keep * inv_freq + (1 - keep) * inv_freq / rope.factor


def rope_tables(config, positions):
    """cos and sin, float32 [T, d], at positions [T]."""
    angles = positions[:, None].float() * frequencies(config).to(positions.device)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate_half(x):
    """(a, b) → (−b, a) for the two halves of the last axis."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def apply_rope(q, k, cos, sin):
    """Rotate q [B, H, T, d] and k [B, G, T, d] by tables [T, d], or [B, T, d] where rows differ."""
    cos, sin = cos.unsqueeze(-3), sin.unsqueeze(-3)  # [1, T, d]: one table for all heads
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def attention_core(q, k, v, mask, scale):
    """Attention [B, H, T, d] of q [B, H, T, d] on k, v [B, G, S, d]; mask [T, S] is True where q may look."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = (q @ k.transpose(-2, -1)) * scale
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return torch.softmax(scores, dim=-1, dtype=torch.float32).to(v.dtype) @ v


class RMSNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x):
        return rms_norm(x, self.weight, self.eps)


class LayerCache:
    """Rotated keys and values of the tokens so far in one layer, [B, G, S, d]."""

    def __init__(self):
        self.k, self.v, self.length = None, None, 0

    def extend(self, k, v):
        if self.length:
            k, v = torch.cat((self.k, k), dim=2), torch.cat((self.v, v), dim=2)
        self.k, self.v, self.length = k, v, k.shape[2]
        return k, v


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.head_dim = config.head_dim
        hidden, bias = config.hidden_size, config.attention_bias
        queries, keys = config.num_attention_heads * self.head_dim, config.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(hidden, queries, bias)
        self.k_proj = nn.Linear(hidden, keys, bias)
        self.v_proj = nn.Linear(hidden, keys, bias)
        self.o_proj = nn.Linear(queries, hidden, bias)

    def forward(self, x, cos, sin, cache=None):
        batch, tokens, _ = x.shape

        split = batch, tokens, -1, self.head_dim
        q, k, v = (proj(x).view(split).transpose(1, 2) for proj in (self.q_proj, self.k_proj, self.v_proj))
        q, k = apply_rope(q, k, cos, sin)
        if cache is not None:
            k, v = cache.extend(k, v)
        mask = torch.ones(tokens, k.shape[2], dtype=torch.bool, device=x.device).tril(k.shape[2] - tokens)
        y = attention_core(q, k, v, mask, self.head_dim**-0.5)
        return self.o_proj(y.transpose(1, 2).reshape(batch, tokens, -1))


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        if config.sliding_window is not None:
            raise Unsupported("this Llama knows no sliding window")
        if config.hidden_act != "silu":
            raise Unsupported(f"this Llama knows no hidden_act {config.hidden_act!r}")
        hidden, width, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj, self.up_proj = nn.Linear(hidden, width, bias), nn.Linear(hidden, width, bias)
        self.down_proj = nn.Linear(width, hidden, bias)

    def forward(self, x):
        return self.down_proj(silu_mul(self.gate_proj(x), self.up_proj(x)))


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(self, x, cos, sin, cache=None):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        cos, sin = rope_tables(config, torch.arange(config.max_position_embeddings))
        self.register_buffer("cos", cos, persistent=False)  # no tensor of the checkpoint
        self.register_buffer("sin", sin, persistent=False)

    def tables(self, positions):
        """The rows of the tables that belong to the tokens at hand."""
        return self.cos[positions], self.sin[positions]

    def forward(self, tokens, cache, positions=None):
        past = cache[0].length
        if positions is None:
            positions = torch.arange(past, past + tokens.shape[1], device=tokens.device)
        cos, sin = self.tables(positions)
        x = self.embed_tokens(tokens)
        for layer, layer_cache in zip(self.layers, cache, strict=True):
            x = layer(x, cos, sin, layer_cache)
        return self.norm(x)


class Llama(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.model = Decoder(config)
        tied = config.tie_word_embeddings
        self.lm_head = None if tied else nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, tokens, positions=None):
        return self.step(tokens, self.new_cache(*tokens.shape), positions)

    def step(self, tokens, cache, positions=None):
        head = self.model.embed_tokens if self.lm_head is None else self.lm_head
        return functional.linear(self.model(tokens, cache, positions), head.weight)

    def loss(self, tokens):
        logits = self(tokens)[:, :-1]  # each predicts the token after it
        return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())

    def new_cache(self, batch, capacity):  # noqa: ARG002 - it grows
        return [LayerCache() for _ in self.model.layers]

    def cache_tensors(self, cache):
        return [t for layer in cache for t in (layer.k, layer.v)]

    def attention_module(self, x, positions, layer):
        return self.model.layers[layer].self_attn(x, *self.model.tables(positions))

    def mlp(self, x, layer):
        return self.model.layers[layer].mlp(x)

    def block(self, x, positions, layer):
        return self.model.layers[layer](x, *self.model.tables(positions))


# Where the suites may look: a failure is then placed at the first step that is wrong.
TAPS = {
    "embedding": "model.embed_tokens",
    "layers.{i}.attn_norm": "model.layers.{i}.input_layernorm",
    "layers.{i}.q": "model.layers.{i}.self_attn.q_proj",
    "layers.{i}.k": "model.layers.{i}.self_attn.k_proj",
    "layers.{i}.v": "model.layers.{i}.self_attn.v_proj",
    "layers.{i}.attention": "model.layers.{i}.self_attn.o_proj:input",
    "layers.{i}.attn_out": "model.layers.{i}.self_attn.o_proj",
    "layers.{i}.mlp_norm": "model.layers.{i}.post_attention_layernorm",
    "layers.{i}.gate": "model.layers.{i}.mlp.gate_proj",
    "layers.{i}.up": "model.layers.{i}.mlp.up_proj",
    "layers.{i}.gated": "model.layers.{i}.mlp.down_proj:input",
    "layers.{i}.mlp_out": "model.layers.{i}.mlp.down_proj",
    "layers.{i}.mlp_residual": "model.layers.{i}",
    "final_norm": "model.norm",
}


def build(config, weights):
    """A model of the config (reference_impl.LlamaConfig) with the weights."""
    model = Llama(config)
    model.load_state_dict(weights, strict=True)
    return model
