"""From what callers saw to the figures of a run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from hashlib import sha256
from typing import Any

import msgspec
import numpy as np

from inflight.workload.item import WorkItem


@dataclass(slots=True)
class Answer:
    """What one caller saw. Times are on one clock, in seconds."""

    submitted_s: float
    arrivals_s: list[float] = field(default_factory=list)  # of a token; over HTTP of a chunk, which may hold several
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] | None = None  # None: not told, as over HTTP


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a run took. ``None``: cannot be told in this mode, or on this system."""

    num_steps: int
    num_step_tokens: int  # query tokens over all steps
    engine_cpu_s: float
    engine_peak_bytes: int | None
    forward_s: float | None = None  # in the native forward pass
    kv_bytes: int | None = None  # of the blocks that were ever used
    api_cpu_s: float | None = None
    client_cpu_s: float | None = None
    client_cpu_share: float | None = None  # of all processors, over the run's wall time


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of one run, or the medians of several."""

    wall_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    output_tokens_per_s: float
    all_tokens_per_s: float
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    itl_mean_s: float | None  # None: no request had two arrivals
    itl_p50_s: float | None
    itl_p99_s: float | None
    prefill_tokens_per_s: float  # prompt tokens / time until every request has its first token
    decode_tokens_per_s: float | None  # arrivals after that / the time they took
    num_steps: int
    mean_step_tokens: float
    python_share: float | None  # of wall time: all but the native forward pass; None: the pass is torch's, or unknown
    engine_cpu_s: float
    api_cpu_s: float | None
    client_cpu_s: float | None
    client_cpu_share: float | None
    engine_peak_bytes: int | None
    kv_bytes: int | None
    engine_peak_less_kv_bytes: int | None
    output_sha256: str | None  # of the token ids; None: not told
    text_sha256: str


def figures(
    workload: Sequence[WorkItem], answers: Sequence[Answer], start_s: float, end_s: float, usage: Usage
) -> Figures:
    """Reduce a run. ``answers`` are in the order of ``workload``; each has at least one arrival."""
    wall_s = end_s - start_s
    num_prompt_tokens = sum(len(item.prompt_token_ids) for item in workload)
    num_output_tokens = sum(item.max_tokens for item in workload)
    ttft_s = [answer.arrivals_s[0] - answer.submitted_s for answer in answers]
    itl_s = [float(gap_s) for answer in answers for gap_s in np.diff(answer.arrivals_s)]
    prefilled_s = max(answer.arrivals_s[0] for answer in answers)
    num_later = sum(arrived_s > prefilled_s for answer in answers for arrived_s in answer.arrivals_s)
    peak, kv = usage.engine_peak_bytes, usage.kv_bytes
    return Figures(
        wall_s=wall_s,
        num_prompt_tokens=num_prompt_tokens,
        num_output_tokens=num_output_tokens,
        output_tokens_per_s=num_output_tokens / wall_s,
        all_tokens_per_s=(num_prompt_tokens + num_output_tokens) / wall_s,
        ttft_mean_s=statistics.fmean(ttft_s),
        ttft_p50_s=float(np.percentile(ttft_s, 50)),
        ttft_p99_s=float(np.percentile(ttft_s, 99)),
        itl_mean_s=statistics.fmean(itl_s) if itl_s else None,
        itl_p50_s=float(np.percentile(itl_s, 50)) if itl_s else None,
        itl_p99_s=float(np.percentile(itl_s, 99)) if itl_s else None,
        prefill_tokens_per_s=num_prompt_tokens / (prefilled_s - start_s),
        decode_tokens_per_s=num_later / (end_s - prefilled_s) if num_later else None,
        num_steps=usage.num_steps,
        mean_step_tokens=usage.num_step_tokens / usage.num_steps,
        python_share=None if not usage.forward_s else 1 - usage.forward_s / wall_s,
        engine_cpu_s=usage.engine_cpu_s,
        api_cpu_s=usage.api_cpu_s,
        client_cpu_s=usage.client_cpu_s,
        client_cpu_share=usage.client_cpu_share,
        engine_peak_bytes=peak,
        kv_bytes=kv,
        engine_peak_less_kv_bytes=None if peak is None or kv is None else peak - kv,
        output_sha256=_sha256([answer.token_ids for answer in answers]),
        text_sha256=sha256("\0".join("".join(answer.texts) for answer in answers).encode()).hexdigest(),
    )


def medians(runs: Sequence[Figures]) -> Figures:
    """Return the median of each figure; of hashes the common one, or ``differs``."""
    values: dict[str, Any] = {one.name: _median([getattr(run, one.name) for run in runs]) for one in fields(Figures)}
    return Figures(**values)


def _median(values: list[float | int | str | None]) -> float | int | str | None:
    numbers = [value for value in values if isinstance(value, float | int)]
    if len(numbers) == len(values):
        return statistics.median(numbers)
    return values[0] if len(set(values)) == 1 else "differs"


def _sha256(outputs: list[list[int] | None]) -> str | None:
    """Of the JSON text of the lists of token ids, without spaces; None where one is not known."""
    return None if None in outputs else sha256(msgspec.json.encode(outputs)).hexdigest()
