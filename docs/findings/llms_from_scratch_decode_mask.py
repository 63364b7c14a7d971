"""Every step behind LLMs-from-scratch's KV cache makes the mask of all tokens so far, to take a row of it."""

import sys

import torch
from llms_from_scratch.kv_cache.llama3 import KVCache, Llama3Model

config = {
    "vocab_size": 16,
    "context_length": 2048,
    "emb_dim": 32,
    "n_heads": 4,
    "n_layers": 1,
    "hidden_dim": 48,
    "n_kv_groups": 2,
    "rope_base": 500_000.0,
    "rope_freq": None,
    "dtype": torch.float32,
}
model, cache, made = Llama3Model(config).eval(), KVCache(n_layers=1), []


def look(_block, given):
    mask = given[1]
    made.append(mask.untyped_storage().nbytes())
    print(f"mask {list(mask.shape)}, a part of {made[-1]} bytes")


model.trf_blocks[0].register_forward_pre_hook(look)
with torch.no_grad():
    for chunk in torch.zeros(1, 2047, dtype=torch.int64).split([2046, 1], dim=1):
        model(chunk, cache=cache)
print(f"for a token behind 131071: {131072**2} bytes; a row of it is enough")
sys.exit(made[-1] < 2047**2)
