"""The metadata of a GGUF file, without its tensors.

The ``gguf`` package makes several objects for each element of an array, which takes seconds for a vocabulary; one
pass over the mapped file takes some tens of milliseconds.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)  # version 1 counted with 32 bits
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


def read_gguf_metadata(path: Path) -> dict[str, Any]:
    """All key-value pairs of a little-endian GGUF file, arrays as lists or tuples.

    Raises ``ValueError`` if the file is no such file or is cut short, ``OSError`` if it cannot be read.
    Source: docs/gguf.md of ggml-org/ggml.
    """
    with path.open("rb") as file:
        if file.read(4) != _MAGIC:
            raise ValueError(f"{path} is not a GGUF file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _read_pairs(data)
            except (struct.error, UnicodeDecodeError, RecursionError) as error:
                raise ValueError(f"{path} is a damaged GGUF file: {error}") from error


def _read_pairs(data: mmap.mmap) -> dict[str, Any]:
    (version,) = _U32.unpack_from(data, 4)
    if version not in _VERSIONS:
        raise ValueError(f"GGUF version {version} is not supported, only {_VERSIONS} are")
    (num_pairs,) = _U64.unpack_from(data, 16)
    position = 24
    pairs: dict[str, Any] = {}
    for _ in range(num_pairs):
        key, position = _read_string(data, position)
        (kind,) = _U32.unpack_from(data, position)
        pairs[key], position = _read_value(data, kind, position + 4)
    return pairs


def _read_value(data: mmap.mmap, kind: int, position: int) -> tuple[Any, int]:
    if kind == _STRING:
        return _read_string(data, position)
    if kind == _ARRAY:
        return _read_array(data, position)
    if kind not in _SCALARS:
        raise ValueError(f"GGUF value type {kind} at byte {position} is unknown")
    scalar = struct.Struct("<" + _SCALARS[kind])
    return scalar.unpack_from(data, position)[0], position + scalar.size


def _read_array(data: mmap.mmap, position: int) -> tuple[Any, int]:
    (kind,) = _U32.unpack_from(data, position)
    (length,) = _U64.unpack_from(data, position + 4)
    position += 12
    if length > len(data):
        raise ValueError(f"GGUF array of {length} elements at byte {position} is longer than the file")
    if kind in _SCALARS:
        numbers = struct.Struct(f"<{length}{_SCALARS[kind]}")
        return numbers.unpack_from(data, position), position + numbers.size
    values = []
    for _ in range(length):
        value, position = _read_value(data, kind, position)
        values.append(value)
    return values, position


def _read_string(data: mmap.mmap, position: int) -> tuple[str, int]:
    start = position + 8
    end = start + _U64.unpack_from(data, position)[0]
    if end > len(data):
        raise ValueError(f"GGUF string at byte {position} runs past the end of the file")
    return data[start:end].decode("utf-8"), end
