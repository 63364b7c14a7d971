"""Sebastian Raschka's llms-from-scratch: its Llama 3, and the same with a KV cache.

Everything is computed by the library's own functions and modules, and weights go through its own loader.
Checked with llms-from-scratch 1.0.19.
"""

# ruff: noqa: PLC0415 - a library is imported by who uses it

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from conformance.implementations import modules
from conformance.implementations.base import Attend, Implementation, Model, Unsupported
from conformance.implementations.llms_from_scratch_attention import fast, plain, with_cache
from conformance.implementations.llms_from_scratch_model import LLMsFromScratchModel
from reference_impl import LlamaConfig, Rope

EPS = 1e-5  # of every norm of its blocks and models: no field of a config


def rope_freq(rope: Rope) -> dict[str, Any] | None:
    """The rule as the library spells it.

    Raises:
        Unsupported: it has no such rule.
    """
    if rope.partial_rotary_factor != 1:
        raise Unsupported("llms-from-scratch rotates whole heads: it has no partial_rotary_factor")
    if rope.rope_type == "default":
        return None
    if rope.rope_type != "llama3":
        raise Unsupported(f"llms-from-scratch has llama3 scaling or none, not {rope.rope_type}")
    return {
        "factor": rope.factor,
        "low_freq_factor": rope.low_freq_factor,
        "high_freq_factor": rope.high_freq_factor,
        "original_context_length": rope.original_max_position_embeddings,
    }


def own_config(config: LlamaConfig, dtype: torch.dtype) -> dict[str, Any]:
    """The canonical config as the library's dict.

    Raises:
        Unsupported: it has no words for the config; each reason is given.
    """
    width = config.hidden_size / config.num_attention_heads
    lacking = {
        f"head_dim is always hidden_size / num_attention_heads = {width:g}, not {config.head_dim}": (
            config.head_dim != width
        ),
        f"rms_norm_eps is always {EPS}, not {config.rms_norm_eps}": config.rms_norm_eps != EPS,
        f"the activation is always silu, not {config.hidden_act}": config.hidden_act != "silu",
        "there are no biases": config.attention_bias or config.mlp_bias,
        "there is no sliding window": config.sliding_window is not None,
    }
    reasons = [why for why, is_so in lacking.items() if is_so]
    if reasons:
        raise Unsupported(f"in llms-from-scratch {', and '.join(reasons)}")
    return {
        "vocab_size": config.vocab_size,
        "context_length": config.max_position_embeddings,
        "emb_dim": config.hidden_size,
        "n_heads": config.num_attention_heads,
        "n_layers": config.num_hidden_layers,
        "hidden_dim": config.intermediate_size,
        "n_kv_groups": config.num_key_value_heads,
        "rope_base": config.rope.rope_theta,
        "rope_freq": rope_freq(config.rope),
        "dtype": dtype,
    }


class LLMsFromScratch(Implementation):
    """The package of the book "Build a Large Language Model (From Scratch)".

    Errors of its loader name the canonical tensors, so own_name is left as it is.
    """

    name = "llms-from-scratch"
    packages = ("llms-from-scratch",)
    module = "llms_from_scratch"

    def build(self, config: LlamaConfig, weights: Mapping[str, Tensor]) -> Model:
        """Llama3Model, its weights through load_weights_into_llama.

        Its config has no word for tying: where lm_head.weight is absent, the loader copies the embedding and
        prints that it does, whatever tie_word_embeddings says.
        """
        from llms_from_scratch.llama3 import load_weights_into_llama

        modules.refuse_tied_head(config, weights)
        model = _allocated(config, weights)
        with contextlib.redirect_stdout(io.StringIO()):
            load_weights_into_llama(model, model.cfg, weights)
        return _ready(model, config)

    def formats(self) -> tuple[str, ...]:
        """Its own."""
        return ("llms-from-scratch",)

    def build_from(self, format_name: str, config: LlamaConfig, tensors: Mapping[str, Tensor]) -> Model:
        """Llama3Model, loaded strictly and without its loader; its head is its own, also where tied.

        Raises:
            Unsupported: another format.
        """
        if format_name not in self.formats():
            raise Unsupported(f"llms-from-scratch loads its own tensors alone, not {format_name}")
        model = _allocated(config, tensors)
        model.load_state_dict(tensors, strict=True)
        return _ready(model, config)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """The first norm of a TransformerBlock, which is torch.nn.RMSNorm with an eps of the library's.

        Raises:
            Unsupported: another eps.
        """
        from llms_from_scratch.llama3 import TransformerBlock

        if eps != EPS:
            raise Unsupported(f"in llms-from-scratch rms_norm_eps is always {EPS}, not {eps}")
        sizes = {"emb_dim": x.shape[-1], "n_heads": 1, "n_kv_groups": 1, "hidden_dim": 1, "dtype": x.dtype}
        with torch.device("meta"):
            norm = TransformerBlock(sizes).norm1
        y: Tensor = torch.func.functional_call(norm, {"weight": weight}, (x,))
        return y

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        """The middle of FeedForward, with its projections taken out."""
        from llms_from_scratch.llama3 import FeedForward

        with torch.device("meta"):
            mlp = FeedForward({"emb_dim": 1, "hidden_dim": 1, "dtype": gate.dtype})
        mlp.fc1, mlp.fc2, mlp.fc3 = modules.Pick(0), modules.Pick(1), nn.Identity()
        y: Tensor = mlp((gate, up))
        return y

    def rope_tables(self, config: LlamaConfig, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Rows of compute_rope_params of a context that is long enough, [T, d]."""
        from llms_from_scratch.llama3 import compute_rope_params

        cos, sin = compute_rope_params(
            head_dim=config.head_dim,
            theta_base=config.rope.rope_theta,
            context_length=int(positions.max()) + 1,
            freq_config=rope_freq(config.rope),
        )
        return cos.to(positions.device)[positions], sin.to(positions.device)[positions]

    def apply_rope(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """llms_from_scratch.llama3.apply_rope."""
        from llms_from_scratch.llama3 import apply_rope

        return apply_rope(q, cos, sin), apply_rope(k, cos, sin)

    def attention_core(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
        """See with_cache."""
        return with_cache(q, k, v, mask, scale)

    def attention_cores(self) -> dict[str, Attend]:
        """The plain one, the one with a cache, and the fast one; the first and the last are causal always."""
        return {"plain": plain, "cached": with_cache, "fast": fast}


def _allocated(config: LlamaConfig, tensors: Mapping[str, Tensor]) -> Any:
    """A Llama3Model in the dtype and on the device of what is to be loaded."""
    from llms_from_scratch.llama3 import Llama3Model

    dtype, device = modules.dtype_and_device(tensors)
    with modules.NoInit():
        return Llama3Model(own_config(config, dtype)).to(device)


def _ready(model: nn.Module, config: LlamaConfig) -> Model:
    return LLMsFromScratchModel(model.eval().requires_grad_(False), config)
