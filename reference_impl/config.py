"""The configuration of a Llama: frozen, validated, with the field names of Hugging Face's config.json."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

# Each frequency rule and exactly the fields it takes besides rope_theta.
ROPE_FIELDS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh")


def is_number(value: object) -> bool:
    """Whether a value is a finite number; a config.json may hold strings in their place."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True, kw_only=True)
class Rope:
    """How fast each pair of a head turns with the position.

    Args:
        rope_theta: base θ of the geometric series of frequencies.
        rope_type: "default", "linear" or "llama3".
        factor: by how much slow pairs are slowed down (linear, llama3).
        low_freq_factor, high_freq_factor: edges of the smooth band, in turns per original context (llama3).
        original_max_position_embeddings: original context C0, in tokens (llama3).
        partial_rotary_factor: the part of each head that is rotated, from its front; the rest passes through.

    Raises:
        ValueError: an unknown rope_type, or a field its rule lacks or does not take.
    """

    rope_theta: float = 10000.0
    rope_type: str = "default"
    factor: float | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    original_max_position_embeddings: int | None = None
    partial_rotary_factor: float = 1.0

    def __post_init__(self) -> None:
        if self.rope_type not in ROPE_FIELDS:
            raise ValueError(
                f"rope_type is {self.rope_type!r}, expected one of {', '.join(ROPE_FIELDS)}; "
                "write the rule's name as config.json spells it"
            )
        wanted = ROPE_FIELDS[self.rope_type]
        optional = {name for names in ROPE_FIELDS.values() for name in names}
        given = tuple(n for n in vars(self) if n in optional and getattr(self, n) is not None)
        if set(given) != set(wanted):
            raise ValueError(
                f"rope_type {self.rope_type!r} got the fields {sorted(given)}, expected exactly "
                f"{sorted(wanted)}; missing {sorted(set(wanted) - set(given))}, "
                f"not taken {sorted(set(given) - set(wanted))}"
            )
        for name in ("rope_theta", *wanted):
            value = getattr(self, name)
            if not (is_number(value) and value > 0):
                raise ValueError(f"{name} is {value!r}, expected a positive number")
        part = self.partial_rotary_factor
        if not (is_number(part) and 0 < part <= 1):
            raise ValueError(f"partial_rotary_factor is {part!r}, expected a part of the head, at most 1")
        if self.low_freq_factor is not None and self.low_freq_factor >= (self.high_freq_factor or 0):
            raise ValueError(
                f"low_freq_factor is {self.low_freq_factor}, expected less than "
                f"high_freq_factor {self.high_freq_factor}; they may have been exchanged"
            )

    def rotary_dim(self, head_dim: int) -> int:
        """How many elements of a head are rotated: the part of it, rounded down."""
        return int(head_dim * self.partial_rotary_factor)


@dataclass(frozen=True, kw_only=True)
class LlamaConfig:
    """The sizes and constants that fix which function a Llama computes.

    Args:
        vocab_size: V. hidden_size: D. intermediate_size: F. num_hidden_layers: L.
        num_attention_heads: H query heads. num_key_value_heads: G heads of keys and values, H % G == 0.
        head_dim: d, even; D / H where not given. It need not be D / H.
        rms_norm_eps: added to the mean square, inside the root.
        rope: the frequency rule.
        max_position_embeddings: longest context, in tokens; the reference allocates nothing by it.
        sliding_window: how many keys a query sees, its own included; None for all before it.
        tie_word_embeddings: the unembedding is the embedding.
        hidden_act: activation of the gate.
        attention_bias, mlp_bias: whether the projections have biases.

    Raises:
        ValueError: sizes that are not positive, odd d, H not a multiple of G, unknown activation.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int = 0
    rms_norm_eps: float = 1e-5
    rope: Rope = Rope()
    max_position_embeddings: int = 2048
    sliding_window: int | None = None
    tie_word_embeddings: bool = False
    hidden_act: str = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name == "head_dim" else 1  # 0 stands for D / H
            sized = field.type == "int" or (field.type == "int | None" and value is not None)
            if sized and (type(value) is not int or value < least):
                raise ValueError(f"{field.name} is {value!r}, expected a whole number of at least 1")
        if self.head_dim == 0:
            if self.hidden_size % self.num_attention_heads:
                raise ValueError(
                    f"hidden_size {self.hidden_size} is no multiple of num_attention_heads "
                    f"{self.num_attention_heads}; give head_dim"
                )
            object.__setattr__(self, "head_dim", self.hidden_size // self.num_attention_heads)
        if self.head_dim % 2:
            raise ValueError(f"head_dim is {self.head_dim}, expected an even number: rotation turns pairs")
        part, rotary = self.rope.partial_rotary_factor, self.rope.rotary_dim(self.head_dim)
        if rotary < 2 or rotary % 2:
            raise ValueError(
                f"partial_rotary_factor {part} of head_dim {self.head_dim} is {rotary}, expected an even "
                "number of at least 2: rotation turns pairs"
            )
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} is no multiple of num_key_value_heads "
                f"{self.num_key_value_heads}; every kv head must serve the same number of query heads"
            )
        if not (is_number(self.rms_norm_eps) and self.rms_norm_eps >= 0):
            raise ValueError(f"rms_norm_eps is {self.rms_norm_eps!r}, expected a number of at least 0")
        if self.hidden_act not in ACTIVATIONS:
            raise ValueError(f"hidden_act is {self.hidden_act!r}, expected one of {', '.join(ACTIVATIONS)}")

    @property
    def group_size(self) -> int:
        """H / G: how many query heads share a kv head."""
        return self.num_attention_heads // self.num_key_value_heads


def gated_width(hidden_size: int, multiple_of: int, multiplier: float = 1.0) -> int:
    """The width F of the gated network where a config gives its rule instead: Meta's params.json does.

    F = int(multiplier · int(2/3 · 4D)), rounded up to a multiple of multiple_of: three matrices of that width
    weigh what the two of width 4D did.

    Args:
        hidden_size: D.
        multiple_of: "multiple_of".
        multiplier: "ffn_dim_multiplier"; 1 where it is absent.

    Source: Shazeer 2020, arXiv 2002.05202, section 3; Meta llama3/model.py, FeedForward.
    """
    width = int(multiplier * int(2 * 4 * hidden_size / 3))
    return multiple_of * math.ceil(width / multiple_of)
