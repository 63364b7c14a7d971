"""A model of LLMs-from-scratch that was cast after it was built fails at the unembedding."""

import sys

import torch
from llms_from_scratch.llama3 import Llama3Model

config = {
    "vocab_size": 16,
    "context_length": 32,
    "emb_dim": 32,
    "n_heads": 4,
    "n_layers": 1,
    "hidden_dim": 48,
    "n_kv_groups": 2,
    "rope_base": 500_000.0,
    "rope_freq": None,
    "dtype": torch.float32,
}
model = Llama3Model(config).eval().to(torch.bfloat16)
dtypes = sorted({str(p.dtype) for p in model.parameters()})
try:
    model(torch.arange(8)[None])
except RuntimeError as refusal:
    print(f"parameters are {', '.join(dtypes)}, the config says {model.cfg['dtype']}: {refusal}")
    sys.exit(0)
print("works")
sys.exit(1)
