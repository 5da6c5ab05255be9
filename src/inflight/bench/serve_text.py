"""The report of ``inflight bench serve`` as lines for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inflight.metrics.summary import QUANTILES

LAG_WARNING_MS = 20.0  # the 99th percentile of sending late from which on the client is said not to keep up

_METRICS = (("TTFT", "ttft"), ("TPOT", "tpot"), ("ITL", "itl"), ("E2E", "e2el"))
_STATISTICS = ("mean", "std", *(f"p{quantile * 100:g}" for quantile in QUANTILES))


def serve_text(report: Mapping[str, Any]) -> str:
    """Return the report's figures. A ``?`` marks a percentile of too few samples."""
    own = report["inflight"]
    return "\n".join((*_head(report, own), *_rates(report, own), "", *_latencies(report, own), *_remarks(report, own)))


def _head(report: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    failed = ", ".join(f"{kind} {count}" for kind, count in sorted(own["errors_by_kind"].items()))
    lines = [f"model          {report['model_id']}, {report['backend']}", f"target         {own['target'][0]}"]
    lines += [f"workload       {note}" for note in own["workload"]]
    lines.append(
        f"requests       {report['completed']} answered, {report['failed']} failed"
        + (f" ({failed})" if failed else "")
        + f", in {report['duration']:.2f} s"
    )
    return lines


def _rates(report: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    lines = [
        f"throughput     {_number(report['request_throughput'])} requests/s, {_number(own['requests_per_minute'])} "
        "requests/min",
        f"               {_number(own['input_throughput'])} input, {_number(report['output_throughput'])} output, "
        f"{_number(report['total_token_throughput'])} total tokens/s",
    ]
    if own["user_tokens_per_s"] is not None:
        user = own["user_tokens_per_s"]
        lines.append(f"for one user   {_number(user['mean'])} tokens/s on average, {_number(user['median'])} median")
    if own["amortised_ms_per_token"] is not None:
        lines.append(
            f"amortised      {_number(own['amortised_ms_per_token'])} ms/token: duration over output tokens, no latency"
        )
    if own["jain_index_of_e2e_per_output_token"] is not None:
        lines.append(f"fairness       {own['jain_index_of_e2e_per_output_token']:.3f} (Jain) of E2E per output token")
    if own["slo"] is not None:
        share = "none were sent" if own["good_share"] is None else f"{own['good_share']:.1%} of all sent"
        lines.append(f"goodput        {_number(report['request_goodput'])} requests/s, {share}: {own['slo']}")
    return lines


def _latencies(report: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    lines = [f"{'ms':<6}" + "".join(f"{name:>11}" for name in (*_STATISTICS, "samples"))]
    for label, metric in _METRICS:
        cells = []
        for statistic in _STATISTICS:
            key = f"{statistic}_{metric}_ms"
            value = report[key]
            doubt = "?" if key in own["too_few_samples"] and value is not None else " "
            cells.append(f"{'-' if value is None else f'{value:,.2f}'}{doubt}".rjust(11))
        lines.append(f"{label:<6}{''.join(cells)}{own['num_samples'][metric]:>11}")
    if own["too_few_samples"]:
        lines.append("?: fewer than 100 samples lie beyond it")
    return lines


def _remarks(report: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    lines = []
    if (lag := own["send_lag_ms"]) is not None:
        lines.append(f"sent late by   p50 {lag['p50']:.2f}, p99 {lag['p99']:.2f}, max {lag['max']:.2f} ms")
        if lag["p99"] > LAG_WARNING_MS:
            lines.append("warning: the client could not keep up; what it measured is of the client as well")
    queue = own["client_queue_ms"]
    if queue is not None and queue["max"] > 0 and report["request_rate"] != "inf":
        lines.append(
            f"no caller free p50 {queue['p50']:.2f}, p99 {queue['p99']:.2f}, max {queue['max']:.2f} ms after arrival, "
            "which is not in TTFT and E2E"
        )
    if own["num_counted_by_chunks"]:
        lines.append(
            f"note: {own['num_counted_by_chunks']} answers came without a usage: a token for each chunk with text"
        )
    if own["num_shorter"]:
        lines.append(f"note: {own['num_shorter']} answers are shorter than was asked for")
    if own["num_not_ended"]:
        lines.append(f"interrupted: {own['num_not_ended']} requests had not ended, and are not counted")
    return lines


def _number(value: float | None) -> str:
    """A number with about four figures; a dash where there is none."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
