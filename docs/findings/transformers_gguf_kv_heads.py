"""transformers: in a GGUF without head_count_kv, which is optional, q and k stay in adjacent pairs."""

import sys

from tiny_gguf import METADATA, read_by_transformers
from torch import equal

mha = {name: value for name, value in METADATA.items() if name != "attention.head_count_kv"}
given, left_out = (read_by_transformers(m).model.layers[0].self_attn for m in (METADATA, mha))
same = {
    part: equal(getattr(given, part).weight, getattr(left_out, part).weight)
    for part in ("q_proj", "k_proj", "v_proj")
}
print(f"4 heads; read with head_count_kv = 4 and without it, the same: {same}")
sys.exit(all(same.values()))
