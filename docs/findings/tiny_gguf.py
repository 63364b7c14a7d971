"""Writes a GGUF file of one small Llama layer for the findings about GGUF, and has transformers read it."""

import tempfile
from pathlib import Path

import numpy as np
from gguf import GGUFWriter
from transformers import LlamaForCausalLM

D, F, V, H, d = 32, 48, 16, 4, 8
SHAPES = {
    "token_embd": (V, D),
    "output_norm": (D,),
    "output": (V, D),
    "blk.0.attn_norm": (D,),
    "blk.0.attn_q": (H * d, D),
    "blk.0.attn_k": (H * d, D),
    "blk.0.attn_v": (H * d, D),
    "blk.0.attn_output": (D, H * d),
    "blk.0.ffn_norm": (D,),
    "blk.0.ffn_gate": (F, D),
    "blk.0.ffn_up": (F, D),
    "blk.0.ffn_down": (D, F),
}
TENSORS = {
    f"{name}.weight": np.random.default_rng(0).normal(size=shape).astype(np.float32)
    for name, shape in SHAPES.items()
}
METADATA = {
    "block_count": 1,
    "context_length": 8192,
    "embedding_length": D,
    "feed_forward_length": F,
    "attention.head_count": H,
    "attention.head_count_kv": H,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.dimension_count": d,
    "rope.freq_base": 10000.0,
    "vocab_size": V,
}


def read_by_transformers(metadata=METADATA, tensors=TENSORS):
    """The LlamaForCausalLM that transformers makes of a file with these contents."""
    with tempfile.TemporaryDirectory() as folder:
        writer = GGUFWriter(Path(folder) / "tiny.gguf", "llama")
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        for name, value in metadata.items():
            add[type(value)](f"llama.{name}", value)
        for name, value in tensors.items():
            writer.add_tensor(name, value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return LlamaForCausalLM.from_pretrained(folder, gguf_file="tiny.gguf")
