"""BurstGPT (github.com/HPMLL/BurstGPT; Wang et al., KDD 2025): CSV of seconds and two lengths, with its failures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from inflight.workload.lines import parse_csv
from inflight.workload.trace import Encode, TraceRequest

COLUMNS = ("Timestamp", "Request tokens", "Response tokens")


def read(path: Path, encode: Encode | None) -> Iterator[TraceRequest | None]:
    """Yield the requests; None for one that failed: it has no response tokens. Raises as ``parse_csv`` does."""
    return parse_csv(path, COLUMNS, _row)


def _row(row: Mapping[str, str]) -> TraceRequest | None:
    arrival_s, lengths = float(row["Timestamp"]), (int(row["Request tokens"]), int(row["Response tokens"]))
    if 0 in lengths:
        return None
    return TraceRequest(arrival_s, *lengths)
