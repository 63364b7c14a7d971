"""LitGPT: behind a sliding window's cache, a chunk that wraps sees its own future, and loses its past."""

import sys

import torch
from litgpt import Config
from litgpt.model import GPT

torch.manual_seed(0)
config = Config(
    name="llama",
    block_size=32,
    n_layer=1,
    n_embd=32,
    n_head=4,
    n_query_groups=2,
    head_size=8,
    vocab_size=32,
    padded_vocab_size=32,
    norm_class_name="RMSNorm",
    mlp_class_name="LLaMAMLP",
    intermediate_size=48,
    parallel_residual=False,
    bias=False,
    rotary_percentage=1.0,
    sliding_window_size=8,
)
gpt, tokens = GPT(config).eval(), torch.arange(1, 17)[None]
for parameter in gpt.parameters():
    torch.nn.init.normal_(parameter, std=0.3)


def apart(chunk):
    """How far the logits of 16 tokens in such chunks are from those of one pass."""
    gpt.set_kv_cache(1, max_seq_length=16)
    steps = [gpt(tokens[:, at : at + chunk], torch.arange(at, at + chunk)) for at in range(0, 16, chunk)]
    return float((torch.cat(steps, dim=1) - whole).abs().max())


with torch.no_grad():
    whole = gpt(tokens)
    single, wrapped = apart(1), apart(4)
    print(f"a window of 8, token by token: logits apart by {single:.1g}")
    print(f"a window of 8, four tokens at a time: logits apart by {wrapped:.1g}")
print(
    "(four tokens are written over the four oldest before these are looked at, under a mask that shows all)"
)
sys.exit(wrapped < 1e-4)
