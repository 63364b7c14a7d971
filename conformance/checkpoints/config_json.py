"""config.json to canonical config and back, in the spellings of transformers 4 and 5."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reference_impl import LlamaConfig, Rope
from reference_impl.config import ROPE_FIELDS

# model_type → architecture. The two are one model but for the sliding window.
ARCHITECTURES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM"}
SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
# What an absent field means is fixed by the class that the file is written for: transformers' LlamaConfig.
ABSENT: dict[str, Any] = {
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
}
# Fields that change the function when they hold anything but this, and that no canonical config can say.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "partial_rotary_factor": (None, 1.0),
    "quantization_config": (None,),
    "rope_interleaved": (None, False),
}
# Further ones of either architecture: transformers' Llama has no window, and its Mistral no biases.
NEUTRAL_OF: dict[str, dict[str, tuple[Any, ...]]] = {
    "llama": {"sliding_window": (None,)},
    "mistral": {"attention_bias": (None, False), "mlp_bias": (None, False)},
}
# What an absent window means to transformers' MistralConfig.
MISTRAL_WINDOW = 4096


def config_from_hf(data: Mapping[str, Any]) -> LlamaConfig:
    """The canonical config of a config.json.

    The frequency rule is read from rope_parameters (transformers 5) or from rope_theta and rope_scaling
    (transformers 4), its name from "rope_type" or "type".

    Args:
        data: the parsed file; left as it is.

    Raises:
        ValueError: another architecture, a missing size, an unknown rope type, a field that would be
            dropped, or sizes that do not fit.

    Source: transformers, models/llama/configuration_llama.py, models/mistral/configuration_mistral.py and
        modeling_rope_utils.py.
    """
    kind = model_type_of(data)
    missing = [name for name in SIZES if data.get(name) is None]
    if missing:
        raise ValueError(f"config.json lacks {', '.join(missing)}; a Llama's has them all")
    for name, neutral in (NEUTRAL | NEUTRAL_OF[kind]).items():
        if data.get(name) not in neutral:
            raise ValueError(
                f"config.json has {name} = {data[name]!r}, which the canonical Llama cannot express; "
                f"expected {' or '.join(map(repr, neutral))}, or the field left out"
            )
    fields = {name: data[name] for name in SIZES}
    fields |= {name: default if data.get(name) is None else data[name] for name, default in ABSENT.items()}
    heads = data.get("num_key_value_heads")
    fields["num_key_value_heads"] = data["num_attention_heads"] if heads is None else heads
    if data.get("head_dim") is not None:
        fields["head_dim"] = data["head_dim"]
    if kind == "mistral":
        fields["sliding_window"] = data.get("sliding_window", MISTRAL_WINDOW)
    return LlamaConfig(**fields, rope=rope_from_hf(data))


def model_type_of(data: Mapping[str, Any]) -> str:
    """Of which architecture the config is, of those that are a Llama for causal language modelling.

    Raises:
        ValueError: names the model_type or the architectures found.
    """
    model_type, architectures = data.get("model_type"), data.get("architectures")
    found = f"model_type {model_type!r}, architectures {architectures!r}"
    if model_type is None and not architectures:
        raise ValueError(
            f"config.json has {found}, expected model_type 'llama'; "
            "a Meta params.json must be converted to the Hugging Face layout first"
        )
    for kind, architecture in ARCHITECTURES.items():
        if model_type in (None, kind) and (not architectures or architecture in architectures):
            return kind
    raise ValueError(
        f"config.json is of another architecture: {found}; expected model_type 'llama' and architectures "
        f"['{ARCHITECTURES['llama']}'], or 'mistral' and ['{ARCHITECTURES['mistral']}']"
    )


def rope_from_hf(data: Mapping[str, Any]) -> Rope:
    """The frequency rule of a config.json.

    Raises:
        ValueError: two fields contradict each other, or a field is not the rule's.
    """
    given: dict[str, Any] = {}
    for spelling in (data.get("rope_parameters") or {}, data.get("rope_scaling") or {}):
        if not isinstance(spelling, Mapping):
            raise ValueError(f"the rope scaling is {spelling!r}, expected an object or null")  # noqa: TRY004
        for name, value in spelling.items():
            given[name] = agreed(name, given.get(name), value)
    given = {name: value for name, value in given.items() if value is not None}
    rope_type = agreed("rope_type", given.pop("rope_type", None), given.pop("type", None)) or "default"
    theta = agreed("rope_theta", given.pop("rope_theta", None), data.get("rope_theta"))
    context = "original_max_position_embeddings"
    if context in given:
        agreed(context, given[context], data.get(context))
    if rope_type not in ROPE_FIELDS:
        raise ValueError(f"rope_type is {rope_type!r}; this version knows {', '.join(ROPE_FIELDS)}")
    given.setdefault("partial_rotary_factor", data.get("partial_rotary_factor") or 1.0)
    part = given.pop("partial_rotary_factor")
    if part != 1.0:
        raise ValueError(
            f"partial_rotary_factor is {part!r}; transformers' Llama, for which config.json is written, "
            "rotates the whole head whatever it says: remove the field, or build the LlamaConfig yourself"
        )
    extra = sorted(set(given) - set(ROPE_FIELDS[rope_type]))
    if extra:
        raise ValueError(
            f"rope_type {rope_type!r} takes {list(ROPE_FIELDS[rope_type])}, and config.json also gives "
            f"{extra}: they would be dropped; correct the type or remove them"
        )
    return Rope(rope_theta=10000.0 if theta is None else float(theta), rope_type=rope_type, **given)


def agreed(name: str, one: Any, other: Any) -> Any:
    """The value of a field that is spelled twice, None where neither spelling gives it.

    Raises:
        ValueError: they differ.
    """
    if one is not None and other is not None and one != other:
        raise ValueError(f"config.json says {name} = {one!r} and {other!r} in its two spellings; keep one")
    return other if one is None else one


def config_to_hf(config: LlamaConfig) -> dict[str, Any]:
    """The config.json of a canonical config, in the spelling of transformers 5.

    Returns:
        a new dict that config_from_hf and transformers' AutoConfig read.
    """
    rope = config.rope
    parameters = {"rope_type": rope.rope_type, "rope_theta": rope.rope_theta}
    parameters |= {name: getattr(rope, name) for name in ROPE_FIELDS[rope.rope_type]}
    names = (*SIZES, *ABSENT, "num_key_value_heads", "head_dim")
    kind = "llama" if config.sliding_window is None else "mistral"
    return {
        "architectures": [ARCHITECTURES[kind]],
        "model_type": kind,
        **({} if kind == "llama" else {"sliding_window": config.sliding_window}),
        **{name: getattr(config, name) for name in names},
        "rope_parameters": parameters,
    }


def config_spellings(config: LlamaConfig) -> dict[str, dict[str, Any]]:
    """The config.json of a canonical config in every spelling in use, by name.

    transformers 4 had rope_theta beside a dict rope_scaling, whose rule was called "type" and later
    "rope_type"; transformers 5 has one dict, rope_parameters.

    Returns:
        new dicts, which nothing else holds.
    """
    new = config_to_hf(config)
    rule = dict(new["rope_parameters"])
    theta, kind = rule.pop("rope_theta"), rule.pop("rope_type")
    old = {name: value for name, value in new.items() if name != "rope_parameters"} | {"rope_theta": theta}
    spelt = {"rope_parameters": new}
    if kind == "default":
        return {**spelt, "rope_theta": {**old, "rope_scaling": None}}
    for word in ("rope_type", "type"):
        spelt[f"rope_scaling, {word}"] = {**old, "rope_scaling": {word: kind, **rule}}
    return spelt
