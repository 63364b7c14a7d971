"""Text to ids and back, as the checkpoint itself says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tokenizers

CONTROL, USER_DEFINED = 3, 4  # token types of a GGUF vocabulary
DIGITS_APART = ("smollm", "starcoder", "refact", "command-r", "codeshell")
LLAMA_3 = ("llama-bpe", "llama3", "llama-v3")
# How Llama 3 cuts text into words; published in its tokenizer.json and in Meta's llama3/tokenizer.py.
LLAMA_3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Tokenizer:
    """Text to ids and back.

    Args:
        backend: of the tokenizers library.
    """

    backend: tokenizers.Tokenizer

    def encode(self, text: str) -> list[int]:
        """Ids of a text, with the begin token where the checkpoint wants one."""
        return list(self.backend.encode(text).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens left out."""
        return str(self.backend.decode(list(ids)))


Found = tuple[Tokenizer | None, tuple[str, ...]]


def from_folder(folder: Path) -> Found:
    """The tokenizer of a folder's tokenizer.json; None and the reason where there is none to read.

    Raises:
        ValueError: the file cannot be parsed.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        return None, (f"no tokenizer: {folder.name} has no tokenizer.json",)
    if find_spec("tokenizers") is None:
        return None, ("no tokenizer: the tokenizers package is not installed",)
    from tokenizers import Tokenizer as Backend  # noqa: PLC0415 - an extra

    try:
        return Tokenizer(Backend.from_file(str(path))), ()
    except Exception as error:  # the library raises bare Exception
        raise ValueError(f"{path}: {error}; fetch it again, or remove it to go without text") from error


def from_gguf(metadata: Mapping[str, Any]) -> Found:
    """The byte-level BPE tokenizer in a GGUF file's metadata; None and the reason where it has none of these.

    Args:
        metadata: by key.
    """
    kind, words = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if find_spec("tokenizers") is None:
        return None, ("no tokenizer: the tokenizers package is not installed",)
    if kind != "gpt2" or words not in (*DIGITS_APART, *LLAMA_3, "gpt-2"):
        return None, (f"no tokenizer: GGUF model {kind!r} with words {words!r} is not known",)
    return Tokenizer(byte_level_bpe(metadata, words)), ()


def byte_level_bpe(metadata: Mapping[str, Any], words: str) -> tokenizers.Tokenizer:
    """A tokenizers BPE of a GGUF vocabulary, cut into words as its pre-tokenizer says.

    Source: llama.cpp src/llama-vocab.cpp.
    """
    from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, processors  # noqa: PLC0415
    from tokenizers import Tokenizer as Backend  # noqa: PLC0415

    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    llama_3 = words in LLAMA_3
    vocabulary = {token: i for i, token in enumerate(tokens)}
    backend = Backend(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=llama_3))
    if llama_3:
        cut = pre_tokenizers.Split(Regex(LLAMA_3_WORDS), behavior="isolated")
        parts = [cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    else:
        digits = [pre_tokenizers.Digits(individual_digits=True)] if words in DIGITS_APART else []
        parts = [*digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    backend.pre_tokenizer = pre_tokenizers.Sequence(parts)
    backend.decoder = decoders.ByteLevel()
    types = metadata.get("tokenizer.ggml.token_type", [])
    whole = [(t, kind) for t, kind in zip(tokens, types, strict=False) if kind in (CONTROL, USER_DEFINED)]
    backend.add_special_tokens([AddedToken(t, normalized=False) for t, kind in whole if kind == CONTROL])
    backend.add_tokens([AddedToken(t, normalized=False) for t, kind in whole if kind == USER_DEFINED])
    if metadata.get("tokenizer.ggml.add_bos_token", llama_3):
        begin = metadata["tokenizer.ggml.bos_token_id"]
        backend.post_processor = processors.TemplateProcessing(
            single=f"{tokens[begin]} $A", special_tokens=[(tokens[begin], begin)]
        )
    return backend
