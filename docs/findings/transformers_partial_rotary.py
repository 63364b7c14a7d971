"""transformers: Llama drops partial_rotary_factor silently, and breaks on it under a scaled rule."""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def config(**rule):
    return LlamaConfig(
        vocab_size=16,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        head_dim=8,
        rope_parameters={"rope_theta": 10000.0, "partial_rotary_factor": 0.5, **rule},
    )


pairs = LlamaForCausalLM(config(rope_type="default")).model.rotary_emb.inv_freq.numel()
print(f"half of a head of 8 is 2 pairs; the default rule rotates {pairs}")
try:
    LlamaForCausalLM(config(rope_type="linear", factor=2.0))(torch.arange(4)[None])
except RuntimeError as error:
    print(f"the linear rule makes 2, and the rotation fails: {error}")
sys.exit(pairs == 2)
