"""transformers: positions that are not given count the padding, whatever the attention mask says."""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def apart(**rule):
    """By how much the logits of 8 tokens change with 12 of padding on the left, positions given and not."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=16,
        rope_parameters={"rope_theta": 10000.0, **rule},
        initializer_range=0.3,
    )
    model, text = LlamaForCausalLM(config).eval(), torch.arange(1, 9)[None]
    padded = torch.cat([torch.zeros(1, 12, dtype=torch.int64), text], dim=1)
    mask = (padded > 0).long()
    given = {"position_ids": (mask.cumsum(1) - 1).clamp(min=0)}  # as generate() makes them
    with torch.no_grad():
        alone = model(text).logits
        there = [model(padded, attention_mask=mask, **named).logits[:, 12:] for named in (given, {})]
    return [float((logits - alone).abs().max()) for logits in there]


for rule in ({"rope_type": "default"}, {"rope_type": "dynamic", "factor": 2.0}):
    counted, not_given = apart(**rule)
    print(f"{rule['rope_type']} rule, positions counted over the mask: logits apart by {counted:.1g}")
    print(f"{rule['rope_type']} rule, positions not given: logits apart by {not_given:.1g}")
print("(8 tokens are within a context of 16, but in slots 12 … 19 they are taken for 20 tokens)")
sys.exit(not_given < 1e-4)
