"""LitGPT's input_pos are slots of the cache, not positions: behind a gap the empty slots are attended to."""

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
torch.manual_seed(0)
gpt, tokens = GPT(config).eval(), torch.arange(8)[None]


@torch.no_grad()
def logits(positions):
    gpt.set_kv_cache(batch_size=1)
    return gpt(tokens, positions)


near, far = logits(torch.arange(8)), logits(torch.arange(8) + 20)
apart = (near - far).abs().max()
print(f"positions 0 … 7 and 20 … 27, where rotation sees distances alone: logits apart by {apart:.2g}")
with torch.no_grad():
    print(f"(positions 0 … 7 and none given: {(near - gpt(tokens)).abs().max():.2g})")
sys.exit(bool(apart < 1e-5))
