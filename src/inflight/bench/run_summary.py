"""From the outcomes of a run to its figures, under the names of ``vllm bench serve --save-result``.

The names and formulas are those of vLLM's ``vllm/benchmarks/serve.py`` (``calculate_metrics`` and ``benchmark``, at
commit 009e6d4a1cd6ba3fb2a9fc00f4ec06f5297232a1); what differs is said in ``docs/bench.md``. Figures that vLLM has not
are under ``inflight``.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from inflight.bench.outcome import Outcome
from inflight.metrics.slo import Slo
from inflight.metrics.summary import QUANTILES, enough_for


def summarize_run(outcomes: Sequence[Outcome], duration_s: float, slo: Slo | None = None) -> dict[str, Any]:
    """Reduce a run of ``duration_s`` seconds, ready for JSON. A figure that is not defined is None, never 0.

    Tokens and latencies are of the requests that were answered; a failed request counts as failed, and as one that
    missed ``slo``.
    """
    answered = [outcome for outcome in outcomes if outcome.error is None]
    num_input = sum(outcome.num_prompt_tokens for outcome in answered)
    num_output = sum(outcome.num_output_tokens for outcome in answered)
    num_good = sum(slo.met_by(outcome) for outcome in answered) if slo is not None else None
    samples_s = {
        "ttft": [outcome.ttft_s for outcome in answered if outcome.ttft_s is not None],
        "tpot": [outcome.tpot_s for outcome in answered if outcome.tpot_s is not None],
        "itl": [gap_s for outcome in answered for gap_s in outcome.itl_s],
        "e2el": [outcome.e2el_s for outcome in answered],
    }
    per_second = 1 / duration_s if duration_s > 0 else math.nan
    figures: dict[str, Any] = {
        "duration": duration_s,
        "completed": len(answered),
        "failed": len(outcomes) - len(answered),
        "total_input_tokens": num_input,
        "total_output_tokens": num_output,
        "request_throughput": _defined(len(answered) * per_second),
        "request_goodput": None if num_good is None else _defined(num_good * per_second),
        "output_throughput": _defined(num_output * per_second),
        "total_token_throughput": _defined((num_input + num_output) * per_second),
        "max_output_tokens_per_s": _busiest_second(answered),
        "max_concurrent_requests": _most_at_once(answered),
    }
    for name, of_metric in samples_s.items():
        figures |= latency_figures(name, of_metric)
    figures["inflight"] = {
        "input_throughput": _defined(num_input * per_second),
        "requests_per_minute": _defined(60 * len(answered) * per_second),
        "amortised_ms_per_token": 1e3 * duration_s / num_output if num_output else None,
        "user_tokens_per_s": _user_tokens_per_s(answered),
        "jain_index_of_e2e_per_output_token": jain_index(
            [outcome.e2el_s / outcome.num_output_tokens for outcome in answered if outcome.num_output_tokens]
        ),
        "num_counted_by_chunks": sum(not outcome.counted for outcome in answered),
        "slo": None if slo is None else str(slo),
        "num_good": num_good,
        "good_share": num_good / len(outcomes) if num_good is not None and outcomes else None,
        "num_samples": {name: len(of_metric) for name, of_metric in samples_s.items()},
        "too_few_samples": [
            f"p{quantile * 100:g}_{name}_ms"
            for name, of_metric in samples_s.items()
            for quantile in QUANTILES
            if not enough_for(len(of_metric), quantile)
        ],
        "errors_by_kind": dict(Counter(outcome.error.kind.value for outcome in outcomes if outcome.error is not None)),
        "send_lag_ms": _three_ms(outcome.sent_s - outcome.due_s for outcome in outcomes),
        "client_queue_ms": _three_ms(outcome.due_s - outcome.scheduled_s for outcome in outcomes),
    }
    return figures


def latency_figures(name: str, samples_s: Sequence[float]) -> dict[str, float | None]:
    """Mean, median, standard deviation (of the samples, as numpy's) and percentiles (interpolated) in ms."""
    in_ms = np.array(samples_s) * 1e3
    empty = not len(in_ms)
    figures = {
        f"mean_{name}_ms": None if empty else float(in_ms.mean()),
        f"median_{name}_ms": None if empty else float(np.median(in_ms)),
        f"std_{name}_ms": None if empty else float(in_ms.std()),
    }
    for quantile in QUANTILES:
        key = f"p{quantile * 100:g}_{name}_ms"
        figures[key] = None if empty else float(np.percentile(in_ms, quantile * 100))
    return figures


def jain_index(values: Sequence[float]) -> float | None:
    """How evenly something is shared out, from 1 / n (one has it all) to 1 (all have the same).

    (sum x)^2 / (n sum x^2): Jain, Chiu and Hawe, DEC-TR-301, 1984. None without a value above 0.
    """
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares > 0 else None


def _user_tokens_per_s(answered: Iterable[Outcome]) -> dict[str, float] | None:
    """What one caller gets: its output tokens over its end-to-end latency."""
    rates = [outcome.num_output_tokens / outcome.e2el_s for outcome in answered if outcome.e2el_s > 0]
    return {"mean": statistics.fmean(rates), "median": statistics.median(rates)} if rates else None


def _busiest_second(answered: Sequence[Outcome]) -> float:
    """The most tokens that came in one of the seconds counted from the first request's sending."""
    start_s = min((outcome.sent_s for outcome in answered), default=0.0)
    seconds: Counter[int] = Counter()
    for outcome in answered:
        for arrival in outcome.arrivals:
            seconds[int(arrival.at_s - start_s)] += arrival.num_tokens
    return float(max(seconds.values(), default=0))


def _most_at_once(answered: Sequence[Outcome]) -> int:
    """The most requests that were under way at one time; one that ends as another is sent is not."""
    moves = [(outcome.sent_s, 1) for outcome in answered] + [(outcome.end_s, -1) for outcome in answered]
    most = now = 0
    for _, change in sorted(moves):
        now += change
        most = max(most, now)
    return most


def _three_ms(samples_s: Iterable[float]) -> dict[str, float] | None:
    in_ms = np.array(list(samples_s)) * 1e3
    if not len(in_ms):
        return None
    return {"p50": float(np.percentile(in_ms, 50)), "p99": float(np.percentile(in_ms, 99)), "max": float(in_ms.max())}


def _defined(value: float) -> float | None:
    return None if math.isnan(value) else value


def details(outcomes: Sequence[Outcome]) -> dict[str, list[Any]]:
    """What ``--save-detailed`` adds: a list of each, in the order of the outcomes. Times are in seconds."""
    return {
        "input_lens": [outcome.num_prompt_tokens for outcome in outcomes],
        "output_lens": [0 if outcome.error is not None else outcome.num_output_tokens for outcome in outcomes],
        "ttfts": [outcome.ttft_s for outcome in outcomes],
        "itls": [outcome.itl_s for outcome in outcomes],
        "latencies": [outcome.e2el_s for outcome in outcomes],
        "start_times": [outcome.sent_s for outcome in outcomes],
        "queue_times": [outcome.sent_s - outcome.scheduled_s for outcome in outcomes],
        "generated_texts": [outcome.text for outcome in outcomes],
        "errors": [
            "" if outcome.error is None else f"{outcome.error.kind}: {outcome.error.message}" for outcome in outcomes
        ],
    }
