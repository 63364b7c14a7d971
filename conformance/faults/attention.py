"""Wrong attention."""

from __future__ import annotations

import torch
from torch import Tensor

from conformance.faults.catalogue import Fault, load_fault, op_fault, ops_fault
from conformance.faults.mask import top_left
from reference_impl import LlamaConfig, Ops
from reference_impl.attention import attention
from reference_impl.attention import softmax as right_softmax
from reference_impl.block import Step, Weights, attention_module


def tiled(x: Tensor, group_size: int) -> Tensor:
    """kv heads tiled, 0 1 0 1, instead of repeated, 0 0 1 1."""
    return x.repeat(1, group_size, 1, 1)


def first_head(x: Tensor, group_size: int) -> Tensor:
    """The first kv head for all."""
    return x[:, :1].expand(-1, x.shape[1] * group_size, -1, -1)


def reversed_heads(x: Tensor, group_size: int) -> Tensor:
    """The kv heads in reverse."""
    return x.flip(1).repeat_interleave(group_size, dim=1)


def narrow_softmax(scores: Tensor) -> Tensor:
    """Weights of 16-bit scores summed one by one in 16 bit."""
    if scores.dtype == torch.float32:
        return right_softmax(scores)
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    total = torch.zeros_like(powers[..., 0])
    for column in powers.unbind(-1):
        total = total + column
    return powers / total[..., None]


def unshifted(scores: Tensor) -> Tensor:
    """Powers taken without the largest score subtracted: they overflow where scores pass 88."""
    powers = scores.float().exp()
    return (powers / powers.sum(-1, keepdim=True)).to(scores.dtype)


def over_queries(scores: Tensor) -> Tensor:
    """Softmax over the queries."""
    return torch.softmax(scores, dim=-2).nan_to_num(0.0)


def unnormalised(scores: Tensor) -> Tensor:
    """Weights that sum to one only up to 2%."""
    return right_softmax(scores) * 0.98


def groups_of_one(x: Tensor, group_size: int) -> Tensor:
    """Query head h on kv head h, as if groups were of one; beyond them the last kv head."""
    heads = torch.arange(x.shape[1] * group_size).clamp(max=x.shape[1] - 1)
    return x[:, heads]


def along_the_tokens(x: Tensor, group_size: int) -> Tensor:
    """Tokens repeated in place of heads: the axis of the other layout."""
    batch, heads, keys, width = x.shape
    return x.repeat_interleave(group_size, dim=2).reshape(batch, heads * group_size, keys, width)


def scaled(factor: float) -> object:
    """The attention at another scale than it is told."""

    def wrong(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, ops: Ops) -> Tensor:
        return attention(q, k, v, mask, scale * factor, ops)

    return wrong


def later_rows(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, ops: Ops) -> Tensor:
    """Right for the first row of a batch; the others read its keys."""
    return attention(q, k[:1].expand_as(k), v, mask, scale, ops)


def unusual_width(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, ops: Ops) -> Tensor:
    """A kernel for widths that are powers of two: of others it leaves the beginning of a head unwritten."""
    y = attention(q, k, v, mask, scale, ops)
    if y.shape[-1].bit_count() != 1:
        y[:, -1, 0] = 0
    return y


def hidden_over_heads(
    config: LlamaConfig, weights: dict[str, Tensor]
) -> tuple[LlamaConfig, dict[str, Tensor]]:
    """The head width taken for hidden size over heads, as the scale of the scores shows."""
    factor = (config.head_dim / (config.hidden_size / config.num_attention_heads)) ** 0.5
    return config, {n: w * factor if "q_proj" in n else w for n, w in weights.items()}


def scale_from_hidden(
    config: LlamaConfig, weights: dict[str, Tensor]
) -> tuple[LlamaConfig, dict[str, Tensor]]:
    """The scores divided by the root of the hidden size."""
    factor = (config.head_dim / config.hidden_size) ** 0.5
    return config, {n: w * factor if "q_proj" in n else w for n, w in weights.items()}


def next_group(x: Tensor, group_size: int) -> Tensor:
    """Every query head on the kv head of the group after its own."""
    return x.roll(-1, dims=1).repeat_interleave(group_size, dim=1)


def mean_of_the_heads(x: Tensor, group_size: int) -> Tensor:
    """The mean of all kv heads for every query head."""
    return x.mean(1, keepdim=True).expand(-1, x.shape[1] * group_size, -1, -1)


def fixed_order(config: LlamaConfig, weights: dict[str, Tensor]) -> tuple[LlamaConfig, dict[str, Tensor]]:
    """The first kv head louder than the others, whatever its weights."""
    louder = dict(weights)
    for name, weight in weights.items():
        if "v_proj.weight" in name:
            louder[name] = weight.clone()
            louder[name][: config.head_dim] *= 2
    return config, louder


def without_bias(*names: str) -> object:
    """A layer without some of the biases of its projections."""

    def wrong(x: Tensor, weights: Weights, step: Step) -> Tensor:
        left_out = {f"self_attn.{name}_proj.bias" for name in names}
        return attention_module(x, {n: w for n, w in weights.items() if n not in left_out}, step)

    return wrong


def cores(**factors: float) -> object:
    """Backends that take the scale of the scores differently."""
    ops = Ops()

    def core(factor: float) -> object:
        return lambda q, k, v, mask, scale: attention(q, k, v, mask, scale * factor, ops)

    return lambda: {name: core(factor) for name, factor in factors.items()}


def blind_backend() -> dict[str, object]:
    """A fast path that takes no mask."""
    ops = Ops()
    return {
        "plain": lambda q, k, v, mask, scale: attention(q, k, v, mask, scale, ops),
        "fast": lambda q, k, v, _mask, scale: attention(q, k, v, None, scale, ops),
    }


def anchored_backend() -> dict[str, object]:
    """A fast path that makes a causal mask of its own, aligned top-left."""
    ops = Ops()

    def fast(q: Tensor, k: Tensor, v: Tensor, _mask: Tensor, scale: float) -> Tensor:
        return attention(q, k, v, top_left(q.shape[-2], k.shape[-2]), scale, ops)

    return {"plain": lambda q, k, v, mask, scale: attention(q, k, v, mask, scale, ops), "fast": fast}


def dropped(scores: Tensor) -> Tensor:
    """Dropout of the weights, in evaluation too."""
    return torch.dropout(right_softmax(scores), p=0.1, train=True)


def scaled_in_place(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, ops: Ops) -> Tensor:
    """q scaled where it stands."""
    return attention(q.mul_(scale), k, v, mask, 1.0, ops)


def input_overwritten(x: Tensor, weights: Weights, step: Step) -> Tensor:
    """The result written over the input."""
    return x.copy_(attention_module(x, weights, step))


FAULTS: list[Fault] = [
    ops_fault("attention.tiled", "ATTN-1", "keras-team/keras-hub#1203", expand_kv=tiled),
    ops_fault("attention.first-kv-head", "ATTN-1", expand_kv=first_head),
    ops_fault("attention.kv-reversed", "ATTN-1", expand_kv=reversed_heads),
    ops_fault("attention.batch-rows", "ATTN-1", "vllm-project/vllm#27034", attention=later_rows),
    ops_fault("attention.no-scale", "ATTN-2", scale=lambda _d: 1.0),
    ops_fault("attention.scale-twice", "ATTN-2", "huggingface/transformers#38290", scale=lambda d: 1.0 / d),
    ops_fault("attention.scale-fixed", "ATTN-2", scale=lambda _d: 128**-0.5),
    load_fault(
        "attention.scale-from-hidden",
        "ATTN-2",
        "FareedKhan-dev/train-llm-from-scratch#3",
        scale_from_hidden,
    ),
    load_fault("attention.width-from-hidden", "ATTN-5", "InternLM/lmdeploy#2761", hidden_over_heads),
    ops_fault("attention.softmax-axis", "ATTN-3", softmax=over_queries),
    ops_fault("attention.unnormalised", "ATTN-3", softmax=unnormalised),
    ops_fault("attention.softmax-16-bit", "ATTN-3", softmax=narrow_softmax),
    ops_fault("attention.core-scale", "ATTN-1", attention=scaled(1.1)),
    load_fault("attention.first-group-louder", "ATTN-1", "classical", fixed_order),
    ops_fault("attention.softmax-unshifted", "ATTN-1", softmax=unshifted),
    ops_fault("attention.next-group", "ATTN-4", expand_kv=next_group),
    ops_fault("attention.mean-kv-head", "ATTN-1", expand_kv=mean_of_the_heads),
    ops_fault("attention.groups-of-one", "ATTN-1", "THUDM/LongBench#27", expand_kv=groups_of_one),
    ops_fault(
        "attention.along-the-tokens", "ATTN-1", "PrimeIntellect-ai/prime-rl#2681", expand_kv=along_the_tokens
    ),
    ops_fault("attention.unusual-width", "ATTN-1", "Dao-AILab/flash-attention#1214", attention=unusual_width),
    ops_fault(
        "attention.biases-ignored",
        "ATTN-6",
        "mlc-ai/mlc-llm#3494",
        attention_module=without_bias("q", "k", "v", "o"),
    ),
    ops_fault("attention.o-bias-ignored", "ATTN-6", attention_module=without_bias("o")),
    op_fault(
        "attention.backend-rescales",
        "ATTN-7",
        "huggingface/transformers#38290",
        attention_cores=cores(a=1, b=0.9),
    ),
    op_fault(
        "attention.backend-blind", "ATTN-7", "huggingface/transformers#30437", attention_cores=blind_backend
    ),
    op_fault(
        "attention.backend-anchored",
        "ATTN-7",
        "microsoft/onnxruntime#28958",
        attention_cores=anchored_backend,
    ),
    ops_fault("attention.dropout", "ATTN-11", "pytorch/pytorch#124464", softmax=dropped),
    ops_fault("attention.q-in-place", "ATTN-12", attention=scaled_in_place),
    ops_fault("attention.input-overwritten", "ATTN-12", attention_module=input_overwritten),
]
