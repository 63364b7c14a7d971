"""A chunk that begins at the last row of LLMs-from-scratch's table is turned by that row, all of it."""

import sys

import torch
from llms_from_scratch.kv_cache.llama3 import KVCache, Llama3Model

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
torch.manual_seed(0)
model = Llama3Model(config).eval()
longer = Llama3Model({**config, "context_length": 64}).eval()
longer.load_state_dict(model.state_dict())
tokens = torch.randint(16, (1, 36))


def decoded(model, *chunks):
    model.reset_kv_cache()
    cache = KVCache(n_layers=1)
    return torch.cat([model(chunk, cache=cache) for chunk in tokens.split(list(chunks), dim=1)], dim=1)


with torch.no_grad():
    right = decoded(longer, 31, 5)
    for chunks in ((30, 6), (32, 4), (31, 5)):
        try:
            got = decoded(model, *chunks)
        except RuntimeError as refusal:
            print(f"context 32, chunks {chunks}: refused, {refusal}")
        else:
            off = (got - right)[0, 31:].abs().amax(dim=-1)
            print(f"context 32, chunks {chunks}: no error; logits 31 to 35 are off by {off.tolist()}")
            sys.exit(not off[1:].min() > 1e-3)
sys.exit(1)
