"""Files of lines, plain or gzip: what is wrong with a line is said with the file's name and the line's number."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar, cast

import msgspec

T = TypeVar("T")


def parse_lines(path: Path, parse: Callable[[bytes], T]) -> Iterator[tuple[int, T]]:
    """Yield the number, from 1, and the parsed value of each line that is not blank; ``.gz`` is unpacked.

    Raises ``ValueError``, with the line's number, where ``parse`` raises ``ValueError`` or a msgspec error, and for a
    gzip file that is cut short; ``OSError`` if the file cannot be read.
    """
    for number, text in _numbered(path):
        if not text.strip():
            continue
        try:
            value = parse(text)
        except (ValueError, msgspec.DecodeError) as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
        yield number, value


def parse_csv(path: Path, columns: tuple[str, ...], parse: Callable[[Mapping[str, str]], T]) -> Iterator[T]:
    """Yield the parsed value of each row after the header, which must name ``columns``. No field holds a comma.

    Raises as ``parse_lines`` does.
    """
    header: list[str] = []

    def row(text: bytes) -> T | None:
        values = [value.strip() for value in text.decode("utf-8-sig").split(",")]
        if not header:
            if missing := [name for name in columns if name not in values]:
                raise ValueError(f"the header has no column {missing[0]!r}")
            header.extend(values)
            return None
        if len(values) != len(header):
            raise ValueError(f"{len(values)} values, and the header has {len(header)} columns")
        return parse(dict(zip(header, values, strict=True)))

    rows = parse_lines(path, row)
    next(rows, None)  # the header
    yield from (cast(T, value) for _, value in rows)


def _numbered(path: Path) -> Iterator[tuple[int, bytes]]:
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        try:
            yield from enumerate(file, start=1)
        except (EOFError, zlib.error) as error:
            raise ValueError(f"{path}: not a whole gzip file: {error}") from error
