"""transformers: llama3 scaling without its original context takes max_position_embeddings in its place."""

import sys

from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding


def inv_freq(**context):
    rule = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    config = LlamaConfig(
        head_dim=128,
        max_position_embeddings=131072,
        rope_parameters={"rope_theta": 500000.0, **rule, **context},
    )
    return LlamaRotaryEmbedding(config).inv_freq


right = inv_freq(original_max_position_embeddings=8192)  # Llama 3.1
try:
    silent = inv_freq()
except (KeyError, ValueError) as refusal:
    print(f"refused: {refusal}")
    sys.exit(1)
ratio = silent / right
print(
    f"without original_max_position_embeddings {int((ratio != 1).sum())} of {len(ratio)} frequencies differ,"
)
print(f"by up to a factor of {ratio.max():.2g}")
sys.exit(bool((ratio == 1).all()))
