"""LitGPT's cos and sin are buffers: a cast rounds them for good, until max_seq_length builds them anew."""

import sys

import torch
from litgpt import GPT, Config

config = Config.from_name(
    "Llama-3.1-8B",
    n_layer=1,
    n_embd=32,
    n_head=4,
    n_query_groups=2,
    intermediate_size=48,
    padded_vocab_size=16,
)
config.block_size = 64
gpt = GPT(config)
exact = gpt.cos.clone()
gpt.to(torch.bfloat16)  # as Fabric does under precision="bf16-true"
print(f"after .to(bfloat16): {gpt.cos.dtype}")
gpt.float()
error = (gpt.cos - exact).abs().max()
print(f"after .to(bfloat16).float(): {gpt.cos.dtype}, off by {error:.2g}")
gpt.to(torch.bfloat16).max_seq_length = 63
anew = (gpt.cos - exact[:63]).abs().max()
print(f"after .to(bfloat16) and max_seq_length = 63: {gpt.cos.dtype}, off by {anew:.2g}")
sys.exit(bool(error == 0))
