"""transformers: DynamicCache.reset() fills what it keeps with zeros, which the next prompt attends to."""

import sys

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, StaticCache

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=32,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=2,
    initializer_range=0.3,
)
model, first, second = LlamaForCausalLM(config).eval(), torch.arange(1, 7)[None], torch.arange(9, 14)[None]
apart = {}
with torch.no_grad():
    alone = model(second, use_cache=False).logits
    for cache in (StaticCache(config=config, max_cache_len=8), DynamicCache(config=config)):
        model(first, past_key_values=cache)
        cache.reset()
        name = type(cache).__name__
        apart[name] = float((model(second, past_key_values=cache).logits - alone).abs().max())
        print(f"{name} after reset(): logits of the next prompt apart by {apart[name]:.1g}")
print("(DynamicCache.get_seq_length() stays what it was: the prompt goes on behind zeros)")
sys.exit(apart["DynamicCache"] < 1e-4)
