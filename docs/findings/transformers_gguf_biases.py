"""transformers: the biases of a GGUF file of a Llama are dropped."""

import sys

import numpy as np
from tiny_gguf import TENSORS, H, d, read_by_transformers

biases = {f"blk.0.attn_{part}.bias": np.ones(H * d, dtype=np.float32) for part in "qkv"}
model = read_by_transformers(tensors=TENSORS | biases)
read = [name for name in model.state_dict() if name.endswith("bias")]
print(f"in the file: {list(biases)}; read: {read}, attention_bias={model.config.attention_bias}")
sys.exit(bool(read))
