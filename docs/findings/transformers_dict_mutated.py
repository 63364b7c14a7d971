"""transformers: LlamaConfig writes into the dict it is given; a second config of it has the first one's θ."""

import sys

from transformers import LlamaConfig

scaling = {"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
before = dict(scaling)
LlamaConfig(rope_theta=10000.0, max_position_embeddings=4096, rope_scaling=scaling)
print(f"given:   {before}")
print(f"written: { {name: value for name, value in scaling.items() if name not in before} }")
second = LlamaConfig(rope_theta=500000.0, max_position_embeddings=8192, rope_scaling=scaling)
print(f"a second config of the same dict, with rope_theta=500000.0: {second.rope_parameters['rope_theta']}")
sys.exit(scaling == before)
