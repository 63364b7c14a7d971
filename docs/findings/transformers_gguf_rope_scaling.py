"""transformers: the linear scaling that a GGUF file's metadata asks for is dropped."""

import sys

from tiny_gguf import METADATA, read_by_transformers

scaling = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
model = read_by_transformers(METADATA | scaling)
print(f"metadata: {scaling}; read: {model.config.rope_parameters}")
sys.exit(model.config.rope_parameters["rope_type"] == "linear")
