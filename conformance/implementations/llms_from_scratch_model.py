"""A built Llama of llms-from-scratch: forward, cache, parts and taps, all by the library's own modules.

Shape suffixes: B batch, T tokens, D hidden, H query heads, G kv heads, d head width.
"""

# ruff: noqa: PLC0415 - a library is imported by who uses it

from __future__ import annotations

import functools
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor

from conformance.implementations import modules
from conformance.implementations.base import Held, Model, Show, Unsupported
from conformance.implementations.llms_from_scratch_attention import blocked
from conformance.weight_maps import from_format
from reference_impl import LlamaConfig

# Module path within a layer → tap.
LAYER_INPUTS = {"att.out_proj": "attention", "norm2": "attn_residual", "ff.fc3": "gated"}
LAYER_OUTPUTS = {
    "norm1": "attn_norm",
    "att.W_query": "q",
    "att.W_key": "k",
    "att.W_value": "v",
    "att.out_proj": "attn_out",
    "norm2": "mlp_norm",
    "ff.fc1": "gate",
    "ff.fc2": "up",
    "ff.fc3": "mlp_out",
    "": "mlp_residual",
}


@dataclass
class Cache:
    """A KVCache of the library's, and the model that fills it.

    The library counts the tokens processed in the model (current_pos), not in the cache: two caches of one
    model would count on in each other's place. So each has a model of its own, on the same weights.

    Args:
        model: kv_cache.llama3.Llama3Model.
        kv: its cache.
    """

    model: Any
    kv: Any


class LLMsFromScratchModel(Model):
    """A Llama3Model of llama3, and one of kv_cache.llama3 on the same weights where a cache is asked for.

    Args:
        model: loaded, in eval mode.
        config: canonical.
    """

    def __init__(self, model: Any, config: LlamaConfig) -> None:
        self._model = model
        self._config = config

    def logits(
        self, tokens_BT: Tensor, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """The model's own forward.

        Raises:
            Unsupported: positions other than 0 … T−1, or a mask: it takes token ids alone.
        """
        if mask is not None:
            raise Unsupported("llms-from-scratch's forward takes no mask: it knows no padding, no documents")
        run = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        if positions is not None and not (positions == run).all():
            raise Unsupported("llms-from-scratch's forward takes no positions other than 0 … T−1")
        logits: Tensor = self._model(tokens_BT)
        return logits

    @functools.cached_property
    def _stepping(self) -> Any:
        """The model of kv_cache.llama3, with tables of its own and on the very same weights."""
        from llms_from_scratch.kv_cache.llama3 import Llama3Model

        with modules.NoInit():
            model = Llama3Model(self._model.cfg)
        model.to(self._model.cos.device).load_state_dict(self._model.state_dict(), strict=True, assign=True)
        return model.eval().requires_grad_(False)

    def new_cache(self, batch: int, capacity: int, kind: str = "") -> Cache:  # noqa: ARG002 - it grows
        """A KVCache, which grows by itself."""
        from llms_from_scratch.kv_cache.llama3 import KVCache

        model = modules.share_weights(self._stepping)
        model.reset_kv_cache()
        return Cache(model, KVCache(n_layers=self._config.num_hidden_layers))

    def step(self, tokens_BT: Tensor, cache: Cache) -> Tensor:
        """The model's own forward with a cache, as its generate_text_simple calls it."""
        logits: Tensor = cache.model(tokens_BT, cache=cache.kv)
        return logits

    def reset(self, cache: Cache) -> None:
        """Both halves of what the library remembers."""
        cache.model.reset_kv_cache()
        cache.kv.reset()

    def cache_tensors(self, cache: Cache) -> list[Tensor]:
        """Keys and values of every layer of the KVCache."""
        return [t for pair in cache.kv.get_all() if pair is not None for t in pair]

    def _tables(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """What Llama3Model.forward passes to its blocks: rows of its buffers, [T, d]."""
        rows = len(self._model.cos)
        if positions.ndim != 1 or positions.max() >= rows:
            raise Unsupported(f"a layer of llms-from-scratch takes rows of one table of {rows} positions")
        return self._model.cos[positions], self._model.sin[positions]

    def _around(self, x_BTD: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
        return blocked(x_BTD.shape[1], x_BTD.device), *self._tables(positions)

    def attention_module(self, x_BTD: Tensor, positions: Tensor, layer: int) -> Tensor:
        """GroupedQueryAttention."""
        y_BTD: Tensor = self._model.trf_blocks[layer].att(x_BTD, *self._around(x_BTD, positions))
        return y_BTD

    def mlp(self, x_BTD: Tensor, layer: int) -> Tensor:
        """FeedForward."""
        y_BTD: Tensor = self._model.trf_blocks[layer].ff(x_BTD)
        return y_BTD

    def block(self, x_BTD: Tensor, positions: Tensor, layer: int) -> Tensor:
        """TransformerBlock."""
        y_BTD: Tensor = self._model.trf_blocks[layer](x_BTD, *self._around(x_BTD, positions))
        return y_BTD

    def watch(self, tokens_BT: Tensor, show: Show) -> None:
        """By module hooks; q_rot and k_rot as apply_rope gives them."""
        model, width = modules.share_weights(self._model), self._config.head_dim
        places: dict[int, str] = {}

        def split(tap: str, value: Tensor) -> None:
            if tap.rpartition(".")[2] in {"q", "k", "v"}:
                places[value.data_ptr()] = tap
                show(tap, modules.split_heads(value, width))
            else:
                show(tap, value)

        layers = self._config.num_hidden_layers
        inputs = modules.per_layer(layers, LAYER_INPUTS, "trf_blocks")
        outputs = {
            "tok_emb": "embedding",
            **modules.per_layer(layers, LAYER_OUTPUTS, "trf_blocks"),
            "final_norm": "final_norm",
            "out_head": "logits",
        }
        for layer, block in enumerate(model.trf_blocks):
            watch_rotation(block.att, f"layers.{layer}", places, show)
        with modules.watching(model, split, inputs=inputs, outputs=outputs):
            model(tokens_BT)

    def state_dict(self) -> dict[str, Tensor]:
        """Its weights by canonical names; the library has no way back, so the project's own map is taken.

        Raises:
            ValueError: the unembedding differs from the embedding to which the config ties it.
        """
        canonical = from_format("llms-from-scratch", self._config, self._model.state_dict())
        return {name: value.clone() for name, value in canonical.items()}

    def held(self) -> list[Held]:
        """See Model.held."""
        return modules.held(self._model)

    def cast(self, dtype: torch.dtype) -> Model:
        """Not offered.

        Raises:
            Unsupported: always.
        """
        own = self._model.cfg["dtype"]
        raise Unsupported(
            f"a model of llms-from-scratch keeps the dtype of its config, {own}: its forward casts to it "
            f"before the unembedding, and fails there after .to({dtype})"
        )

    def loss(self, tokens_BT: Tensor) -> Tensor:
        """See loss_of."""
        return loss_of(self._model, tokens_BT)

    def gradients(self, tokens_BT: Tensor) -> list[Tensor]:
        """See Model.gradients."""
        return modules.gradients(self._model, lambda model: loss_of(model, tokens_BT))


def loss_of(model: Any, tokens_BT: Tensor) -> Tensor:
    """The loss of its training loop, calc_loss_batch, of inputs and targets as its GPTDatasetV1 shifts them.

    Raises:
        Unsupported: what else the loop's module imports is not there.
    """
    try:
        from llms_from_scratch.ch05 import calc_loss_batch
    except ImportError as error:
        raise Unsupported(
            f"llms-from-scratch keeps its loss beside its plots ({error}): pip install matplotlib tqdm"
        ) from error
    loss: Tensor = calc_loss_batch(tokens_BT[:, :-1], tokens_BT[:, 1:], model, tokens_BT.device)
    return loss


def watch_rotation(attention: Any, layer: str, places: dict[int, str], show: Show) -> None:
    """Have this one attention module show q and k as apply_rope gives them.

    Module hooks cannot see that function, and it is one for all modules. So the module runs its own forward
    with a look at it: the same code, with apply_rope under another global name for this module alone.

    Args:
        attention: a GroupedQueryAttention, which is changed.
        layer: what stands before the taps' names.
        places: address in memory → tap, of what the projections gave: apply_rope is handed views of it.
        show: is given q_rot, then k_rot.
    """
    forward, rotated = type(attention).forward, dict[str, Tensor]()
    rotate = forward.__globals__["apply_rope"]

    def watched(x_BHTd: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        y_BHTd: Tensor = rotate(x_BHTd, cos, sin)
        rotated[places.get(x_BHTd.data_ptr(), "")] = y_BHTd
        if rotated.keys() == {f"{layer}.q", f"{layer}.k"}:
            for tap in (f"{layer}.q", f"{layer}.k"):
                show(f"{tap}_rot", rotated.pop(tap))
        return y_BHTd

    names = {**forward.__globals__, "apply_rope": watched}
    looked_at = FunctionType(forward.__code__, names, forward.__name__, forward.__defaults__)
    attention.forward = MethodType(looked_at, attention)
