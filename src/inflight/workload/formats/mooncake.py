"""Mooncake's traces (github.com/kvcache-ai/Mooncake; Qin et al., FAST 2025): JSON lines with prefix hashes.

``timestamp`` is in ms; ``hash_ids`` name the prompt's 512-token blocks, the last of which may be shorter. An id stands
for its block and all before it: where two requests have the same id, the KV cache up to there can be shared.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from inflight.workload.lines import parse_lines
from inflight.workload.trace import Encode, TraceRequest

BLOCK_TOKENS = 512

_Length = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class _Line(msgspec.Struct):
    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    input_length: _Length
    output_length: _Length
    hash_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.hash_ids) > -(-self.input_length // BLOCK_TOKENS):
            raise ValueError(f"{len(self.hash_ids)} hash_ids for {self.input_length} tokens of {BLOCK_TOKENS} a block")


def read(path: Path, encode: Encode | None) -> Iterator[TraceRequest | None]:
    """Yield the requests; None for one without prompt or output tokens. Raises as ``parse_lines`` does."""
    for _, line in parse_lines(path, msgspec.json.Decoder(_Line).decode):
        if line.input_length and line.output_length:
            lengths = line.input_length, line.output_length
            yield TraceRequest(line.timestamp / 1000, *lengths, line.hash_ids, BLOCK_TOKENS)
        else:
            yield None
