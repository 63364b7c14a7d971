"""LitGPT's KV cache brings a mask of the square of its capacity, however few tokens are at hand."""

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
config.block_size = 4096
gpt, tokens = GPT(config).eval(), torch.arange(8)[None]
gpt.set_kv_cache(batch_size=1)
with torch.no_grad():
    gpt(tokens, torch.arange(8), input_pos_maxp1=8)
keys, mask = gpt.transformer.h[0].attn.kv_cache.k, gpt.mask_cache
print(f"for 8 tokens and room for 4096: mask {list(mask.shape)} {mask.dtype}, {mask.nbytes} bytes")
print(f"keys of the layer: {list(keys.shape)}, {keys.nbytes} bytes; a mask for 131072: {131072**2} bytes")
sys.exit(mask.nbytes < 4096**2)
