"""LitGPT's YaRN leaves out the attention factor unless mscale or mscale_all_dim is given."""

import math
import sys

from litgpt.model import build_rope_cache

factor = 8.0
rule = {"factor": factor, "beta_fast": 32, "beta_slow": 1, "original_max_seq_len": 4096}
cos, sin = build_rope_cache(2, 64, extra_config=rule)
length = math.hypot(cos[1, 0], sin[1, 0])
print(f"length of (cos, sin): {length:.4f}; the paper's 0.1 ln(factor) + 1: {0.1 * math.log(factor) + 1:.4f}")
sys.exit(abs(length - 1) > 1e-3)
