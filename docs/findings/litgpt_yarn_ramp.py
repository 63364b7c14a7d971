"""LitGPT's YaRN is the wrong way round: it divides the fast pairs by the factor and keeps the slow ones."""

import math
import sys

import torch
from litgpt.model import build_rope_cache

d, theta, factor, context = 64, 10000.0, 8.0, 4096
rule = {"factor": factor, "beta_fast": 32, "beta_slow": 1, "original_max_seq_len": context}
cos, sin = build_rope_cache(2, d, base=theta, extra_config=rule)
plain = theta ** (-torch.arange(0, d, 2) / d)
kept = torch.atan2(sin[1], cos[1])[: d // 2] / plain  # 1 where a frequency is kept, 1/8 where it is divided
turns = context * plain / (2 * math.pi)  # r of the paper: turns within the original context
for i in (0, d // 2 - 1):
    print(f"pair {i} turns {turns[i]:.3g} times in {context} tokens: frequency · {kept[i]:.3g}")
print("YaRN keeps pairs of more than 32 turns and divides those of less than one by the factor")
sys.exit(bool(kept[0] > kept[-1]))
