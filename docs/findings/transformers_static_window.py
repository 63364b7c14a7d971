"""transformers: a StaticCache with room for less than the window makes the window smaller, silently."""

import sys

import torch
from transformers import DynamicCache, MistralConfig, MistralForCausalLM, StaticCache

torch.manual_seed(0)
config = MistralConfig(
    vocab_size=32,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=2,
    sliding_window=8,
    initializer_range=0.3,
)
model, tokens = MistralForCausalLM(config).eval(), torch.arange(1, 13)[None]
whole = model(tokens, use_cache=False).logits
caches = {
    "DynamicCache": DynamicCache(config=config),
    "StaticCache of 12": StaticCache(config=config, max_cache_len=12),
    "StaticCache of 5": StaticCache(config=config, max_cache_len=5),
}
apart = {}
with torch.no_grad():
    for name, cache in caches.items():
        steps = [
            model(tokens[:, at : at + 1], past_key_values=cache, cache_position=torch.tensor([at])).logits
            for at in range(12)
        ]
        apart[name] = float((torch.cat(steps, dim=1) - whole).abs().max())
        print(f"12 tokens, a window of 8, {name}: logits apart by {apart[name]:.1g}")
sys.exit(apart["StaticCache of 5"] < 1e-4)
