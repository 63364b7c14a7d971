"""transformers: .to(bfloat16) of a built model rounds inv_freq, and angles far out are wrong by radians."""

import sys

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

config = LlamaConfig(  # heads and θ of Llama 3, hidden size and the rest small
    vocab_size=16,
    hidden_size=256,
    intermediate_size=48,
    num_hidden_layers=1,
    num_attention_heads=2,
    head_dim=128,
    max_position_embeddings=8192,
    rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
)
exact = LlamaForCausalLM(config).model.rotary_emb.inv_freq
cast = LlamaForCausalLM(config).to(torch.bfloat16).model.rotary_emb.inv_freq.float()
made = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).model.rotary_emb.inv_freq
error = ((cast - exact) / exact).abs().max()
angle = ((cast - exact) * 4096).abs().max()
print(
    f"after .to(bfloat16): inv_freq off by {error:.2g} of itself, the angle at position 4096 by {angle:.2g}"
)
print(f"made in bfloat16, as from_pretrained(dtype=) does: {made.dtype}, exact {torch.equal(made, exact)}")
sys.exit(bool(error == 0))
