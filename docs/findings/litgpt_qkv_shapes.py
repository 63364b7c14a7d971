"""LitGPT concatenates q, k and v before it compares shapes: a head that moved from q to k loads silently."""

import sys

from litgpt import GPT, Config
from litgpt.scripts.convert_hf_checkpoint import copy_weights_hf_llama
from litgpt.scripts.convert_lit_checkpoint import copy_weights_llama

config = Config.from_name(
    "tiny-llama-1.1b",
    n_layer=1,
    n_embd=32,
    n_head=4,
    n_query_groups=2,
    intermediate_size=48,
    padded_vocab_size=16,
)
weights = {}
copy_weights_llama(config, weights, GPT(config).state_dict())
q, k = (f"model.layers.0.self_attn.{part}_proj.weight" for part in "qk")
weights[q], weights[k] = weights[q][:-8], weights[k].repeat(2, 1)[:24]  # one head short, one head long
print(f"q_proj {list(weights[q].shape)}, k_proj {list(weights[k].shape)}; right are [32, 32] and [16, 32]")

state = {}
try:
    copy_weights_hf_llama(config, {}, state, weights)
    GPT(config).load_state_dict(state)
except Exception as refusal:  # noqa: BLE001 - any refusal will do
    print(f"refused: {refusal}")
    sys.exit(1)
print("converted, and loaded strictly, without a word")
