"""A step that LLMs-from-scratch refuses has moved its position all the same: no other step fits after it."""

import sys

import torch
from llms_from_scratch.kv_cache.llama3 import KVCache, Llama3Model

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
model, cache = Llama3Model(config).eval(), KVCache(n_layers=1)
tokens = torch.randint(16, (1, 40))
with torch.no_grad():
    model(tokens[:, :28], cache=cache)
    for chunk in (tokens[:, 28:38], tokens[:, 28:30]):  # ten do not fit into the context of 32, two do
        try:
            model(chunk, cache=cache)
        except RuntimeError as refusal:
            stored = cache.get(0)[0].shape[2]
            print(f"{chunk.shape[1]} tokens: {refusal}; {stored} stored, next position {model.current_pos}")
        else:
            print(f"{chunk.shape[1]} tokens: fine")
sys.exit(model.current_pos == cache.get(0)[0].shape[2])
