"""transformers: with neither cache nor mask, what follows a jump in position_ids sees nothing before it."""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=16, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4
    )
).eval()
tokens, positions = torch.arange(8)[None], torch.tensor([[0, 1, 2, 3, 10, 11, 12, 13]])


@torch.no_grad()
def logits(**given):
    return model(tokens, position_ids=positions, **given).logits


cached, bare = logits(use_cache=True), logits(use_cache=False)
masked = logits(use_cache=False, attention_mask=torch.ones_like(tokens))
apart = (bare - cached).abs().amax(dim=(0, 2))
print(f"positions {positions[0].tolist()}; use_cache=False and use_cache=True apart, by token:")
print([round(value, 3) for value in apart.tolist()])
print(f"use_cache=False with a mask of ones, and use_cache=True: {(masked - cached).abs().max():.2g}")
sys.exit(bool(apart.max() < 1e-6))
