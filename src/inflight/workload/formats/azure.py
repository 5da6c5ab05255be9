"""Azure's LLM inference traces (github.com/Azure/AzurePublicDataset): CSV of a time and two lengths.

The 2023 files (Patel et al., "Splitwise", ISCA 2024) write UTC without saying so, to 100 ns; the 2024 files (Stojkovic
et al., "DynamoLLM", HPCA 2025) write the zone, to 1 us. Both are read to 1 us.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from inflight.workload.lines import parse_csv
from inflight.workload.trace import Encode, TraceRequest

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def read(path: Path, encode: Encode | None) -> Iterator[TraceRequest | None]:
    """Yield the requests; None for one without prompt or output tokens. Raises as ``parse_csv`` does."""
    start: datetime | None = None  # differences to it are exact; seconds since 1970 as a float are not
    for time, num_prompt_tokens, num_output_tokens in parse_csv(path, COLUMNS, _row):
        start = start or time
        if num_prompt_tokens and num_output_tokens:
            yield TraceRequest((time - start).total_seconds(), num_prompt_tokens, num_output_tokens)
        else:
            yield None


def _row(row: Mapping[str, str]) -> tuple[datetime, int, int]:
    time = datetime.fromisoformat(row["TIMESTAMP"])
    lengths = int(row["ContextTokens"]), int(row["GeneratedTokens"])
    if min(lengths) < 0:
        raise ValueError(f"lengths are not negative, got {min(lengths)}")
    return time if time.tzinfo else time.replace(tzinfo=UTC), *lengths
