"""LLMs-from-scratch's loader ties an unembedding that is absent, and drops what it does not know."""

import sys

import torch
from llms_from_scratch.llama3 import Llama3Model, load_weights_into_llama

config = {
    "vocab_size": 16,
    "context_length": 32,
    "emb_dim": 32,
    "n_heads": 4,
    "n_layers": 1,
    "hidden_dim": 48,
    "n_kv_groups": 2,
    "rope_base": 500_000.0,
    "rope_freq": None,
    "dtype": torch.float32,
}
layer = "model.layers.0"
weights = {
    "model.embed_tokens.weight": torch.randn(16, 32),
    f"{layer}.self_attn.q_proj.weight": torch.randn(32, 32),
    f"{layer}.self_attn.k_proj.weight": torch.randn(16, 32),
    f"{layer}.self_attn.v_proj.weight": torch.randn(16, 32),
    f"{layer}.self_attn.o_proj.weight": torch.randn(32, 32),
    f"{layer}.mlp.gate_proj.weight": torch.randn(48, 32),
    f"{layer}.mlp.up_proj.weight": torch.randn(48, 32),
    f"{layer}.mlp.down_proj.weight": torch.randn(32, 48),
    f"{layer}.input_layernorm.weight": torch.randn(32),
    f"{layer}.post_attention_layernorm.weight": torch.randn(32),
    "model.norm.weight": torch.randn(32),
    # A checkpoint with biases that is truncated: the first is not known, the unembedding is missing.
    f"{layer}.self_attn.q_proj.bias": torch.randn(32),
}
model = Llama3Model(config)
try:
    load_weights_into_llama(model, config, weights)
except Exception as refusal:  # noqa: BLE001 - any refusal will do
    print(f"refused: {refusal!r}")
    sys.exit(1)
tied = torch.equal(model.out_head.weight, model.tok_emb.weight)
biases = sum(name.endswith("bias") for name, _ in model.named_parameters())
print(f"q_proj.bias is given: {biases} biases; lm_head.weight is not: the embedding unembeds: {tied}")
sys.exit(not tied or biases > 0)
