"""transformers: the frequency divisors of a GGUF file, where llama.cpp keeps llama3 scaling, are dropped."""

import sys

import numpy as np
from tiny_gguf import TENSORS, d, read_by_transformers

divisors = np.array([1, 1, 4, 8], dtype=np.float32)  # as convert_hf_to_gguf.py writes them for Llama 3.1
plain = read_by_transformers().model.rotary_emb.inv_freq
read = read_by_transformers(tensors=TENSORS | {"rope_freqs.weight": divisors}).model.rotary_emb.inv_freq
print(f"rope_freqs.weight = {divisors.tolist()} for heads of {d}")
print(f"frequencies without it over those with it, as transformers reads them: {(plain / read).tolist()}")
sys.exit(bool((plain != read).any()))
