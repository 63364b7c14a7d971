"""Embedding and unembedding tied or untied against the config's word."""

from __future__ import annotations

from dataclasses import replace

import torch

from conformance.faults.catalogue import Fault, Weights, load_fault
from reference_impl import LlamaConfig

Loaded = tuple[LlamaConfig, Weights]
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def tied(config: LlamaConfig, weights: Weights) -> Loaded:
    """The embedding as unembedding although the config unties them."""
    return config, {
        n: weights["model.embed_tokens.weight"] if n == "lm_head.weight" else w for n, w in weights.items()
    }


def tied_in_one(config: LlamaConfig, weights: Weights) -> Loaded:
    """One parameter for embedding and unembedding although the config unties them."""
    return replace(config, tie_word_embeddings=True), {n: w for n, w in weights.items() if n != HEAD}


def tied_by_copy(config: LlamaConfig, weights: Weights) -> Loaded:
    """A copy of the embedding where the config ties: right until it is trained."""
    if not config.tie_word_embeddings or not weights:
        return config, weights
    return replace(config, tie_word_embeddings=False), {**weights, HEAD: weights[EMBEDDING].clone()}


def tie_flag_lost(config: LlamaConfig, weights: Weights) -> Loaded:
    """The config's word about tying not read: the unembedding, absent then, stays as it was initialised."""
    if not config.tie_word_embeddings or not weights:
        return config, weights
    embedding = weights[EMBEDDING]
    noise = torch.randn(embedding.shape, generator=torch.Generator().manual_seed(0))
    initial = (noise / config.hidden_size**0.5).to(embedding.dtype)
    return replace(config, tie_word_embeddings=False), {**weights, HEAD: initial}


FAULTS: list[Fault] = [
    load_fault("weights.tied-although-untied", "LOGITS-1", "deepspeedai/DeepSpeed#4088", tied),
    load_fault("weights.tie-flag-lost", "LOGITS-1", "huggingface/transformers#43429", tie_flag_lost),
    load_fault("weights.tied-by-copy", "WEIGHT-5", "rasbt/LLMs-from-scratch#822", tied_by_copy),
    load_fault("weights.tied-in-one", "WEIGHT-5", "deepspeedai/DeepSpeed#4088", tied_in_one),
]
