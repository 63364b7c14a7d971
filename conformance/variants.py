"""Variants: Llama-family architectures, each with its real config and small ones in which faults show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import overload

from reference_impl import LlamaConfig, Rope

SMALL_CONTEXT = 32  # C0 of a small config: 65 tokens cross it twice
SMALL_WINDOW = 12  # of a small config; no power of two, and less than a tile, a chunk or a prompt of any case


@dataclass(frozen=True, kw_only=True)
class Variant:
    """An architecture under a name.

    Args:
        name: as --variant and the records spell it.
        config: the real one.
        small: by shape name; "gqa" (6 query heads on 2 kv heads) first, the variant's own extreme on top.
        source: where the real config comes from.
    """

    name: str
    config: LlamaConfig
    small: dict[str, LlamaConfig]
    source: str = ""

    def shape(self, name: str) -> LlamaConfig:
        """The config called "real" or by one of the small shapes' names.

        Raises:
            ValueError: no such shape.
        """
        if name == "real":
            return self.config
        if name not in self.small:
            raise ValueError(f"variant {self.name} has no shape {name!r}, only real, {', '.join(self.small)}")
        return self.small[name]


def shrink(config: LlamaConfig, *, square: bool = False) -> dict[str, LlamaConfig]:
    """Small configs that keep what makes a real one special, in shapes that show faults.

    Kept: eps, tying, biases, activation, θ and every constant of the frequency rule. Made powerful: 6 query
    on 2 kv heads (with 4 on 2, k permuted with the wrong head count is the same function), H·d ≠ D, an
    original context and a sliding window that 65 tokens cross, θ other than the 10000 that code hard-wires,
    two layers.

    Args:
        config: the real one.
        square: H·d = D after all, for who knows no other widths.

    Returns:
        "gqa", and "mha" or "mqa" where that is the real config's shape.
    """
    rope = config.rope
    if rope.rope_theta == Rope().rope_theta:
        rope = replace(rope, rope_theta=5000.0)
    if rope.original_max_position_embeddings is not None:
        rope = replace(rope, original_max_position_embeddings=SMALL_CONTEXT)
    # The smooth band of llama3 lies between two wavelengths a factor low/high apart: with fewer pairs none
    # would fall into it.
    head_dim = 32 if rope.rope_type == "llama3" else 16
    gqa = replace(
        config,
        vocab_size=131,
        hidden_size=6 * head_dim if square else 48,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=head_dim,
        rope=rope,
        max_position_embeddings=256,
        sliding_window=None if config.sliding_window is None else SMALL_WINDOW,
    )
    small = {"gqa": gqa}
    if config.num_key_value_heads == config.num_attention_heads:
        small["mha"] = replace(gqa, num_key_value_heads=6)
    elif config.num_key_value_heads == 1:
        small["mqa"] = replace(gqa, num_key_value_heads=1)
    return small


_registry: dict[str, Variant] = {}

Builder = Callable[[], LlamaConfig]


@overload
def variant(builder: Builder) -> Builder: ...
@overload
def variant(
    *, name: str = "", small: dict[str, LlamaConfig] | None = None, square: bool = False, source: str = ""
) -> Callable[[Builder], Builder]: ...
def variant(
    builder: Builder | None = None,
    *,
    name: str = "",
    small: dict[str, LlamaConfig] | None = None,
    square: bool = False,
    source: str = "",
) -> Builder | Callable[[Builder], Builder]:
    """Add a variant: decorate a function that returns its real LlamaConfig.

    Used bare, the name is the function's, with dashes, and the small configs come from shrink().

    Args:
        builder: the function.
        name: another name.
        small: other small configs, by shape name.
        square: small configs in which H·d = D, as in most real ones; see shrink().
        source: paper or config.json the numbers are from.

    Raises:
        ValueError: the name is taken, or what the function returns is no LlamaConfig.
    """

    def add(builder: Builder) -> Builder:
        config = builder()
        title = name or builder.__name__.replace("_", "-")
        if not isinstance(config, LlamaConfig):
            raise ValueError(  # noqa: TRY004 - bad input is a ValueError throughout
                f"variant {title!r} returned {type(config).__name__}, expected reference_impl.LlamaConfig"
            )
        if title in _registry:
            raise ValueError(f"variant {title!r} exists already; pass name= to @variant to give it another")
        shapes = small or shrink(config, square=square)
        _registry[title] = Variant(name=title, config=config, small=shapes, source=source)
        return builder

    return add if builder is None else add(builder)


def variants(names: Sequence[str] = ()) -> list[Variant]:
    """The variants of these names, or all of them in the order they were added.

    Raises:
        ValueError: an unknown name; lists those that exist.
    """
    unknown = [n for n in names if n not in _registry]
    if unknown:
        raise ValueError(f"unknown variant {', '.join(unknown)}; there are {', '.join(_registry)}")
    return [_registry[n] for n in names] if names else list(_registry.values())


def first_with(config: LlamaConfig) -> tuple[str, str]:
    """(variant, shape) of the first variant that has this small config.

    Raises:
        ValueError: none has.
    """
    for candidate in _registry.values():
        for shape, small in candidate.small.items():
            if small == config:
                return candidate.name, shape
    raise ValueError(f"no variant has the small config {config}")
