"""A trace: when requests came to a service and how long they were, as published or as written down by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path

from inflight.metrics.summary import percentile
from inflight.workload.arrivals import mean_rate_per_s

Encode = Callable[[str], list[int]]  # a text as token ids

FORMATS = {  # name -> the module with its ``read(path, encode)``, imported when it is used
    "azure": "inflight.workload.formats.azure",
    "mooncake": "inflight.workload.formats.mooncake",
    "burstgpt": "inflight.workload.formats.burstgpt",
    "jsonl": "inflight.workload.formats.jsonl",
}


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace. Raises ``ValueError`` for one that no server could run.

    Two requests whose ``prefix_ids`` have the same first k entries have the same first k blocks of
    ``prefix_block_tokens`` prompt tokens. ``prompt_token_ids`` is there if the trace holds the prompt itself.
    """

    arrival_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    prefix_ids: tuple[int, ...] = ()
    prefix_block_tokens: int = 0
    prompt_token_ids: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.arrival_s):
            raise ValueError(f"a request arrives at a finite time, got {self.arrival_s}")
        for name in ("num_prompt_tokens", "num_output_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.prefix_ids and self.prefix_block_tokens < 1:
            raise ValueError(f"prefix_block_tokens must be at least 1, got {self.prefix_block_tokens}")


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests, sorted by arrival, and what was done to them, one phrase each, for people.

    Raises ``ValueError`` if there are none or they are not sorted.
    """

    requests: tuple[TraceRequest, ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.requests:
            raise ValueError("a trace holds at least one request")
        if any(later.arrival_s < earlier.arrival_s for earlier, later in pairwise(self.requests)):
            raise ValueError("the requests of a trace are sorted by arrival")

    @property
    def span_s(self) -> float:
        """Seconds from the first arrival to the last."""
        return self.requests[-1].arrival_s - self.requests[0].arrival_s

    def __len__(self) -> int:
        return len(self.requests)

    def __iter__(self) -> Iterator[TraceRequest]:
        return iter(self.requests)


def read_trace(path: Path, trace_format: str, num_requests: int | None = None, encode: Encode | None = None) -> Trace:
    """Read the first ``num_requests`` requests of a file, at most; sorted by arrival, the first at 0 s.

    The file is read no further than that. Requests that failed when the trace was taken are left out, and counted in
    a note. ``encode`` is needed by a trace of prompts as text. Raises ``ValueError``, with the line's number, for a
    line that is not valid, and for an unknown format or no requests; ``OSError`` if the file cannot be read.
    """
    if trace_format not in FORMATS:
        raise ValueError(f"unknown trace format {trace_format!r}; the formats are: {', '.join(FORMATS)}")
    if num_requests is not None and num_requests < 1:
        raise ValueError(f"num_requests must be at least 1, got {num_requests}")
    requests: list[TraceRequest] = []
    num_failed = 0
    for request in import_module(FORMATS[trace_format]).read(path, encode):
        if request is None:
            num_failed += 1
            continue
        requests.append(request)
        if len(requests) == num_requests:
            break
    if not requests:
        raise ValueError(f"{path} holds no requests")
    requests.sort(key=lambda request: request.arrival_s)
    start_s = requests[0].arrival_s
    note = f"{'the first of ' if len(requests) == num_requests else ''}{path.name} ({trace_format})"
    if num_failed:
        note += f", less {num_failed:,} without prompt or output tokens"
    return Trace(tuple(replace(request, arrival_s=request.arrival_s - start_s) for request in requests), (note,))


def describe(trace: Trace) -> str:
    """One line for people: how many requests, at which mean rate, their lengths, and what was done to the trace."""
    rate_per_s = mean_rate_per_s([request.arrival_s for request in trace])
    when = "all at once" if rate_per_s is None else f"{trace.span_s:,.1f} s, {rate_per_s:.3g} requests/s"
    prompts = _percentiles([request.num_prompt_tokens for request in trace])
    outputs = _percentiles([request.num_output_tokens for request in trace])
    line = f"{len(trace):,} requests, {when}; prompt tokens {prompts}; output tokens {outputs}"
    return "; ".join((line, *trace.notes))


def _percentiles(lengths: list[int]) -> str:
    ordered = sorted(lengths)
    return f"p50 {percentile(ordered, 0.5):,} p99 {percentile(ordered, 0.99):,}"
