"""The variants that come with the project, each with the numbers of its published config.json."""

from __future__ import annotations

from dataclasses import replace

from conformance.variants import variant
from reference_impl import LlamaConfig, Rope

LLAMA2_SOURCE = "arXiv 2307.09288, table 1; meta-llama/Llama-2 config.json"
LLAMA3_SOURCE = "arXiv 2407.21783, table 3; meta-llama/Llama-3 config.json"


@variant(name="llama-2-7b", source=LLAMA2_SOURCE)
def llama_2_7b() -> LlamaConfig:
    """Multi-head, θ 1e4."""
    return LlamaConfig(
        vocab_size=32000,
        hidden_size=4096,
        intermediate_size=11008,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=32,
        max_position_embeddings=4096,
    )


@variant(name="llama-2-70b", source=LLAMA2_SOURCE)
def llama_2_70b() -> LlamaConfig:
    """Grouped queries, 64 heads on 8."""
    return replace(
        llama_2_7b(),
        hidden_size=8192,
        intermediate_size=28672,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
        head_dim=128,
    )


@variant(name="code-llama-7b", source="arXiv 2308.12950, section 2.4; codellama config.json")
def code_llama_7b() -> LlamaConfig:
    """Llama 2 with θ 1e6."""
    return replace(
        llama_2_7b(),
        vocab_size=32016,
        max_position_embeddings=16384,
        rope=Rope(rope_theta=1e6),
    )


@variant(name="llama-3-8b", source=LLAMA3_SOURCE)
def llama_3_8b() -> LlamaConfig:
    """Grouped queries and θ 5e5."""
    return replace(
        llama_2_7b(),
        vocab_size=128256,
        intermediate_size=14336,
        num_key_value_heads=8,
        max_position_embeddings=8192,
        rope=Rope(rope_theta=5e5),
    )


def llama3_rope(factor: float) -> Rope:
    """The frequency rule of Llama 3.1 and later."""
    return Rope(
        rope_theta=5e5,
        rope_type="llama3",
        factor=factor,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=8192,
    )


@variant(name="llama-3.1-8b", source=LLAMA3_SOURCE)
def llama_3_1_8b() -> LlamaConfig:
    """Frequency scaling, factor 8."""
    return replace(llama_3_8b(), max_position_embeddings=131072, rope=llama3_rope(8.0))


@variant(name="llama-3.2-1b", source="meta-llama/Llama-3.2-1B config.json")
def llama_3_2_1b() -> LlamaConfig:
    """Frequency scaling, factor 32; tied; head width 64."""
    return replace(
        llama_3_1_8b(),
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        head_dim=64,
        tie_word_embeddings=True,
        rope=llama3_rope(32.0),
    )


@variant(name="llama-3.2-3b", square=True, source="meta-llama/Llama-3.2-3B config.json")
def llama_3_2_3b() -> LlamaConfig:
    """The same with 24 heads of width 128."""
    return replace(
        llama_3_2_1b(),
        hidden_size=3072,
        num_hidden_layers=28,
        num_attention_heads=24,
        head_dim=128,
    )


@variant(name="tinyllama-1.1b", square=True, source="arXiv 2401.02385, table 1; TinyLlama config.json")
def tinyllama() -> LlamaConfig:
    """Llama 2 with 32 heads on 4."""
    return replace(
        llama_2_7b(),
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=22,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=2048,
    )


@variant(name="smollm2-135m", source="arXiv 2502.02737; HuggingFaceTB/SmolLM2-135M config.json")
def smollm2_135m() -> LlamaConfig:
    """9 heads on 3, θ 1e5, tied."""
    return LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        rope=Rope(rope_theta=1e5),
    )


@variant(name="mistral-7b", source="arXiv 2310.06825, table 1; mistralai/Mistral-7B-v0.1 config.json")
def mistral_7b() -> LlamaConfig:
    """Llama 2 with grouped queries and a sliding window on all layers."""
    return replace(
        llama_2_7b(),
        intermediate_size=14336,
        num_key_value_heads=8,
        max_position_embeddings=32768,
        sliding_window=4096,
    )


@variant(name="linear-scaled", source="kaiokendev 2023, position interpolation; arXiv 2306.15595")
def linear_scaled() -> LlamaConfig:
    """Llama 2 stretched by linear interpolation, as many long-context fine-tunes are."""
    return replace(
        llama_2_7b(),
        max_position_embeddings=16384,
        rope=Rope(rope_theta=1e4, rope_type="linear", factor=4.0),
    )
