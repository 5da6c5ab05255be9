"""A checkpoint's numbers, checked where they are read: the error names the file, the key and the value."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from inflight.runtime.errors import UnsupportedModel

MOST = 2**30  # of what is counted: products of two or three such numbers are still sizes of memory
MOST_LAYERS = 10_000  # which are walked one by one


def whole(file: Path, key: str, value: Any, most: int = MOST) -> int:
    """An integer from 1 to ``most``. Raises ``UnsupportedModel``."""
    if type(value) is not int or value < 1:
        raise UnsupportedModel(f"{file}: {key} must be an integer from 1, got {value!r}")
    if value > most:
        raise UnsupportedModel(f"{file}: {key} must be at most {most:,}, got {value:,}")
    return value


def flag(file: Path, key: str, value: Any) -> bool:
    """True or false; absent (``None``) is false. Raises ``UnsupportedModel``."""
    if value is not None and type(value) is not bool:
        raise UnsupportedModel(f"{file}: {key} must be true or false, got {value!r}")
    return bool(value)


def positive(file: Path, key: str, value: Any) -> float:
    """A finite number above 0. Raises ``UnsupportedModel``."""
    if type(value) not in (int, float) or not 0 < value <= sys.float_info.max:
        raise UnsupportedModel(f"{file}: {key} must be a number above 0, got {value!r}")
    return float(value)


def check_heads(file: Path, key: str, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
    """Raise ``UnsupportedModel`` unless each KV head serves equally many heads and positions can turn pairs.

    ``key`` is what the file calls the number of KV heads.
    """
    if num_heads % num_kv_heads:
        raise UnsupportedModel(f"{file}: {key} {num_kv_heads} must divide the number of heads, {num_heads}")
    if num_heads * head_dim > MOST:
        raise UnsupportedModel(f"{file}: {num_heads:,} heads of {head_dim:,} are too many")
    if head_dim % 2:
        raise UnsupportedModel(f"{file}: the size of a head must be even, got head_dim {head_dim}")
