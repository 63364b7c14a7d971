"""A query that the mask of LLMs-from-scratch's attention lets see nothing gets NaN."""

import sys

import torch
from llms_from_scratch.llama3 import GroupedQueryAttention, GroupedQueryAttentionFast, compute_rope_params

torch.manual_seed(0)
attention = GroupedQueryAttention(d_in=32, d_out=32, num_heads=4, num_kv_groups=2)
fast = GroupedQueryAttentionFast(d_in=32, d_out=32, num_heads=4, num_kv_groups=2)
fast.load_state_dict(attention.state_dict())
cos, sin = compute_rope_params(head_dim=8, context_length=16)
x = torch.randn(1, 6, 32)
causal = torch.triu(torch.ones(6, 6, dtype=torch.bool), diagonal=1)  # True = blocked
padded = causal.clone()
padded[:, :2] = True  # two tokens of padding on the left: they see nothing at all
with torch.no_grad():
    usual, y = attention(x, causal, cos, sin), attention(x, padded, cos, sin)
    print(f"causal mask: within {(usual - fast(x, cos, sin)).abs().max():.1g} of the fast attention")
    print(f"with two tokens of padding: NaN at tokens {y[0].isnan().any(-1).nonzero().flatten().tolist()}")
    print(f"a layer further on, at all: {attention(y, padded, cos, sin)[0].isnan().any(-1).tolist()}")
sys.exit(not y[0, :2].isnan().all())
