"""LitGPT holds a tied unembedding as a second parameter, which training moves apart from the first."""

import sys

import torch
from litgpt import GPT, Config
from litgpt.scripts.convert_hf_checkpoint import copy_weights_hf_llama
from litgpt.scripts.convert_lit_checkpoint import copy_weights_llama

# Llama 3.2 1B is tied; here it is small.
config = Config.from_name(
    "Llama-3.2-1B",
    n_layer=1,
    n_embd=32,
    n_head=4,
    n_query_groups=2,
    intermediate_size=48,
    padded_vocab_size=16,
)
torch.manual_seed(0)
weights, state, gpt = {}, {}, GPT(config)
copy_weights_llama(config, weights, gpt.state_dict(), untie_weights=True)  # leaves lm_head.weight out
copy_weights_hf_llama(config, {}, state, weights)
gpt.load_state_dict(state)

embedding, head = gpt.transformer.wte.weight, gpt.lm_head.weight
held = sum(p.numel() for p in gpt.parameters())  # parameters() counts a shared one once
print(f"{held} parameters, of which {head.numel()} are a copy; loaded equal: {torch.equal(embedding, head)}")
tokens = torch.arange(8)[None]
torch.nn.functional.cross_entropy(gpt(tokens)[0, :-1], tokens[0, 1:]).backward()
torch.optim.SGD(gpt.parameters(), lr=0.1).step()
print(f"apart after one step of SGD: {(embedding - head).abs().max():.3g}")
sys.exit(embedding is head)
