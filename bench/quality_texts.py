"""The text that the quality bench reads: files, or the running Python's own documentation and code."""

from __future__ import annotations

import gzip
import inspect
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from inflight.core.request import TokenId
from inflight.text.tokenizer import Tokenizer

MODULES = (
    "argparse",
    "ast",
    "dataclasses",
    "datetime",
    "heapq",
    "inspect",
    "ipaddress",
    "statistics",
    "tarfile",
    "zipfile",
)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens that follow each other in one text."""

    source: str
    token_ids: tuple[TokenId, ...]


def texts(paths: Sequence[Path]) -> dict[str, str]:
    """Texts by name: the files', or Python's own. A .jsonl file (or .jsonl.gz) has a `prompt`, or `turns`, a line."""
    if not paths:
        topics: dict[str, str] = import_module("pydoc_data.topics").topics
        code = [inspect.getsource(import_module(name)) for name in MODULES]
        return {"prose": "\n\n".join(topics.values()), "code": "\n\n".join(code)}
    found = {}
    for path in paths:
        text = (gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()).decode()
        if path.name.removesuffix(".gz").endswith(".jsonl"):
            rows = [json.loads(line) for line in text.splitlines()]
            text = "\n\n".join(part for row in rows for part in (row.get("turns") or [row["prompt"]]))
        found[path.name] = text
    return found


def make_chunks(found: dict[str, str], tokenizer: Tokenizer, num_tokens: int, chunk_tokens: int) -> list[Chunk]:
    """Whole chunks, spread evenly over each text and taken from the texts in turn."""
    each = -(-num_tokens // (chunk_tokens * len(found)))
    columns = []
    for name, text in found.items():
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        available = len(token_ids) // chunk_tokens
        if available < each:
            raise SystemExit(f"{name}: {len(token_ids)} tokens are fewer than {each} chunks of {chunk_tokens}")
        starts = [i * available // each * chunk_tokens for i in range(each)]
        columns.append([Chunk(name, tuple(token_ids[start : start + chunk_tokens])) for start in starts])
    return [chunk for row in zip(*columns, strict=True) for chunk in row]
