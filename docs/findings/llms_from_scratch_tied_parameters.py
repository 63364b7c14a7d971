"""LLMs-from-scratch holds a tied unembedding as a second parameter, which training moves apart."""

import sys

import torch
from llms_from_scratch.llama3 import LLAMA32_CONFIG_1B, Llama3Model, load_weights_into_llama

# Llama 3.2 1B is tied; here it is small.
small = {"vocab_size": 16, "emb_dim": 32, "n_heads": 4, "n_layers": 1, "hidden_dim": 48, "n_kv_groups": 2}
config = {**LLAMA32_CONFIG_1B, **small, "context_length": 32, "dtype": torch.float32}
layer = "model.layers.0"
torch.manual_seed(0)
weights = {
    "model.embed_tokens.weight": torch.randn(16, 32),
    f"{layer}.self_attn.q_proj.weight": torch.randn(32, 32),
    f"{layer}.self_attn.k_proj.weight": torch.randn(16, 32),
    f"{layer}.self_attn.v_proj.weight": torch.randn(16, 32),
    f"{layer}.self_attn.o_proj.weight": torch.randn(32, 32),
    f"{layer}.mlp.gate_proj.weight": torch.randn(48, 32),
    f"{layer}.mlp.up_proj.weight": torch.randn(48, 32),
    f"{layer}.mlp.down_proj.weight": torch.randn(32, 48),
    f"{layer}.input_layernorm.weight": torch.ones(32),
    f"{layer}.post_attention_layernorm.weight": torch.ones(32),
    "model.norm.weight": torch.ones(32),
}
model = Llama3Model(config)
load_weights_into_llama(model, config, weights)

embedding, head = model.tok_emb.weight, model.out_head.weight
held = sum(p.numel() for p in model.parameters())  # parameters() counts a shared one once
given = sum(w.numel() for w in weights.values())
print(f"{held} parameters, {given} in the checkpoint; loaded equal: {torch.equal(embedding, head)}")
tokens = torch.arange(8)[None]
torch.nn.functional.cross_entropy(model(tokens)[0, :-1], tokens[0, 1:]).backward()
torch.optim.SGD(model.parameters(), lr=0.1).step()
print(f"apart after one step of SGD: {(embedding - head).abs().max():.3g}")
sys.exit(embedding is head)
