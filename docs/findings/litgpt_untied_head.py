"""LitGPT ties an unembedding that is absent, also where the checkpoint is untied and truncated."""

import sys

import torch
from litgpt import GPT, Config
from litgpt.scripts.convert_hf_checkpoint import copy_weights_hf_llama
from litgpt.scripts.convert_lit_checkpoint import copy_weights_llama

# Llama 3.1 8B is untied; here it is small.
config = Config.from_name(
    "Llama-3.1-8B",
    n_layer=1,
    n_embd=32,
    n_head=4,
    n_query_groups=2,
    intermediate_size=48,
    padded_vocab_size=16,
)
weights = {}
copy_weights_llama(config, weights, GPT(config).state_dict())
del weights["lm_head.weight"]

state, gpt = {}, GPT(config)
try:
    copy_weights_hf_llama(config, {}, state, weights)
    gpt.load_state_dict(state)
except Exception as refusal:  # noqa: BLE001 - any refusal will do
    print(f"refused: {refusal}")
    sys.exit(1)
same = torch.equal(gpt.lm_head.weight, gpt.transformer.wte.weight)
print(f"lm_head.weight is missing; loaded without a word, the unembedding is the embedding: {same}")
sys.exit(not same)
