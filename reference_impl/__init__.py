"""A minimal Llama to read and to trust: what is right.

Read in this order: config, norm, rope, attention, mlp, cache, block, model; ops is the list of its parts.
"""

from reference_impl.cache import KVCache
from reference_impl.config import LlamaConfig, Rope
from reference_impl.model import Llama
from reference_impl.ops import Ops

__all__ = ["KVCache", "Llama", "LlamaConfig", "Ops", "Rope"]
