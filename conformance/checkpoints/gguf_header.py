"""The header of a GGUF file: metadata, and where each tensor lies; every read is checked against the size.

Parsed here rather than with gguf.GGUFReader, which needs seconds for a vocabulary and reads past the end of
a truncated file. Block sizes and dequantisation are the gguf package's.

Source: ggml, docs/gguf.md.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.checkpoints.intact import how_to_mend

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32
STRING, ARRAY = 8, 9
# struct codes of the scalar types, by their number in the file.
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


@dataclass(frozen=True, kw_only=True)
class TensorInfo:
    """Where a tensor lies.

    Args:
        shape: row-major, as in torch (the file lists the fastest axis first).
        quantisation: number of the ggml type.
        offset, nbytes: of its data in the file.
    """

    shape: tuple[int, ...]
    quantisation: int
    offset: int
    nbytes: int


@dataclass(frozen=True, kw_only=True)
class Header:
    """Metadata by key, tensors by GGUF name."""

    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]


class Cursor:
    """Reads forward through the bytes of a file, never past its end.

    Args:
        path: for messages.
        data: the mapped file.
    """

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.at = path, data, 0
        self.inside = "the header"

    def take(self, count: int) -> bytes:
        """The next count bytes.

        Raises:
            ValueError: the file ends before.
        """
        if self.at + count > len(self.data):
            raise ValueError(
                f"{self.path}: the file ends at byte {len(self.data)}, inside {self.inside}; "
                "it is truncated or damaged, fetch it again"
            )
        self.at += count
        return self.data[self.at - count : self.at]

    def scalars(self, code: str, count: int = 1) -> tuple[Any, ...]:
        """The next count little-endian numbers of a struct code."""
        return struct.unpack(f"<{count}{code}", self.take(count * struct.calcsize(f"<{code}")))

    def string(self) -> str:
        """The next string."""
        (length,) = self.scalars("Q")
        return self.take(length).decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        """The next metadata value of a type.

        Raises:
            ValueError: a type that GGUF does not have.
        """
        if kind in SCALARS:
            return self.scalars(SCALARS[kind])[0]
        if kind == STRING:
            return self.string()
        if kind != ARRAY:
            raise ValueError(f"{self.path}: {self.inside} has unknown type {kind}; the file is damaged")
        item, count = self.scalars("IQ")
        if item in SCALARS:
            return list(self.scalars(SCALARS[item], count))
        return [self.value(item) for _ in range(count)]


def read_header(path: Path) -> Header:
    """Metadata and tensor table of a GGUF file.

    Raises:
        ValueError: no GGUF, an unknown version, or the file ends before its header or a tensor does.
    """
    if path.stat().st_size < len(MAGIC):
        raise ValueError(f"{path}: {path.stat().st_size} bytes are no GGUF file; {how_to_mend(path)}")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        cursor = Cursor(path, data)
        if (magic := cursor.take(4)) != MAGIC:
            raise ValueError(f"{path}: begins with {magic!r}, expected {MAGIC!r}; {how_to_mend(path)}")
        (version,) = cursor.scalars("I")
        if version not in VERSIONS:
            raise ValueError(
                f"{path}: GGUF version {version}, expected one of {VERSIONS} in little-endian order; "
                "convert the file with a current llama.cpp"
            )
        tensor_count, key_count = cursor.scalars("Q", 2)
        metadata = {}
        for _ in range(key_count):
            key = cursor.string()
            cursor.inside = f"metadata {key}"
            metadata[key] = cursor.value(cursor.scalars("I")[0])
        cursor.inside = "the table of tensors"
        table = [read_tensor_row(cursor) for _ in range(tensor_count)]
        alignment = metadata.get("general.alignment", ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(
                f"{path}: general.alignment is {alignment!r}, expected a positive number of bytes"
            )
        start = -(-cursor.at // alignment) * alignment
        return Header(metadata=metadata, tensors=place(path, table, start))


Row = tuple[str, tuple[int, ...], int, int]


def read_tensor_row(cursor: Cursor) -> Row:
    """Name, row-major shape, quantisation and relative offset of the next tensor."""
    name = cursor.string()
    (axes,) = cursor.scalars("I")
    shape = cursor.scalars("Q", axes)[::-1]
    (quantisation,) = cursor.scalars("I")
    (offset,) = cursor.scalars("Q")
    return name, shape, quantisation, offset


def place(path: Path, table: list[Row], start: int) -> dict[str, TensorInfo]:
    """The tensors of the table, each checked to lie within the file.

    Raises:
        ValueError: an unknown quantisation, a name that occurs twice, a tensor beyond the end of the file.
    """
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType  # noqa: PLC0415 - an extra

    size = path.stat().st_size
    tensors: dict[str, TensorInfo] = {}
    for name, shape, quantisation, offset in table:
        if quantisation not in [int(kind) for kind in GGMLQuantizationType]:
            raise ValueError(f"{path}: {name} has the unknown quantisation type {quantisation}; update gguf")
        elements, bytes_ = GGML_QUANT_SIZES[GGMLQuantizationType(quantisation)]
        count = 1
        for length in shape:
            count *= length
        if not shape or shape[-1] % elements or name in tensors:
            raise ValueError(f"{path}: {name} {list(shape)} does not fit its blocks, or occurs twice")
        info = TensorInfo(
            shape=shape, quantisation=quantisation, offset=start + offset, nbytes=count // elements * bytes_
        )
        if info.offset + info.nbytes > size:
            raise ValueError(
                f"{path}: {name} ends at byte {info.offset + info.nbytes}, the file at byte {size}; "
                "it is truncated, fetch it again"
            )
        tensors[name] = info
    return tensors
