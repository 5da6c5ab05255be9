"""From the runs of a throughput-latency curve to its levels, its knee and its fronts; and those as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inflight.bench.intervals import mean_interval
from inflight.bench.knee import find_knee, pareto_front
from inflight.bench.outcome import Outcome, run_duration_s
from inflight.bench.run_summary import summarize_run
from inflight.core.errors import InflightError
from inflight.metrics.slo import Slo

SLO_SHARE = 0.99  # of a level's requests that must keep the objective
COLUMNS = (
    "level", "num_runs", "completed", "failed", "output_throughput", "output_throughput_low", "output_throughput_high",
    "request_throughput", "p50_ttft_ms", "p99_ttft_ms", "p50_tpot_ms", "p99_tpot_ms", "good_share",
)  # fmt: skip


def curve_report(runs: Mapping[int, Sequence[list[Outcome]]], slo: Slo | None) -> dict[str, Any]:
    """Reduce the runs of each level, ready for JSON. Throughput is a mean over runs; latencies are of all of them.

    Raises ``InflightError`` for a run in which no request was answered.
    """
    levels = [_level(level, of_level, slo) for level, of_level in runs.items()]
    throughputs = [row["output_throughputs"] for row in levels]
    knee = find_knee(list(runs), throughputs)
    means = [row["output_throughput"] for row in levels]
    good = [row["level"] for row in levels if slo is not None and row["good_share"] >= SLO_SHARE]
    return {
        "benchmark": "curve",
        "levels": levels,
        "knee": knee.knee,
        "plateau": knee.plateau,
        "gains": [gain._asdict() for gain in knee.gains],
        "falls_at": list(knee.falls_at),
        "knee_text": knee.as_text(),
        "slo": None if slo is None else str(slo),
        "slo_level": max(good, default=None),
        "front_p50_tpot": _front(levels, "p50_tpot_ms", means),
        "front_p99_ttft": _front(levels, "p99_ttft_ms", means),
    }


def _level(level: int, runs: Sequence[list[Outcome]], slo: Slo | None) -> dict[str, Any]:
    each = [summarize_run(run, run_duration_s(run), slo) for run in runs]
    for run, figures in zip(runs, each, strict=True):
        if not figures["total_output_tokens"]:
            errors = [outcome.error.message for outcome in run if outcome.error is not None]
            raise InflightError(f"level {level}: no request was answered{f': {errors[0]}' if errors else ''}")
    outcomes = [outcome for run in runs for outcome in run]
    pooled = summarize_run(outcomes, sum(map(run_duration_s, runs)), slo)
    throughput = mean_interval([figures["output_throughput"] for figures in each])
    return {
        "level": level,
        "num_runs": len(runs),
        "output_throughputs": [figures["output_throughput"] for figures in each],
        "output_throughput": throughput.mean,
        "output_throughput_low": throughput.low,
        "output_throughput_high": throughput.high,
        "good_share": pooled["inflight"]["good_share"],
        "too_few_samples": pooled["inflight"]["too_few_samples"],
        **{name: pooled[name] for name in COLUMNS if name in pooled and not name.startswith("output_throughput")},
    }


def _front(levels: Sequence[Mapping[str, Any]], cost: str, throughputs: Sequence[float]) -> list[int]:
    """The levels on the Pareto front of a latency and throughput, by rising latency."""
    return [levels[index]["level"] for index in pareto_front([row[cost] for row in levels], throughputs)]


def curve_text(report: Mapping[str, Any]) -> str:
    """The levels as a table, and what follows from them. A ``?`` marks a percentile of too few samples."""
    lines = [f"model     {report['model_id']}, {report['backend']}", f"target    {report['target'][0]}"]
    lines += [f"workload  {note}" for note in report["workload"]]
    head = ("level", "tokens/s", "95 % interval", "requests/s", "TTFT p50", "p99 ms", "TPOT p50", "p99 ms", "failed")
    lines += ["", "".join(f"{one:>{width}}" for one, width in zip(head, _WIDTHS, strict=True))]
    for row in report["levels"]:
        low, high = row["output_throughput_low"], row["output_throughput_high"]
        cells = (
            row["level"],
            f"{row['output_throughput']:.1f}",
            "-" if low is None else f"{low:.1f} to {high:.1f}",
            f"{row['request_throughput']:.2f}",
            *(_milliseconds(row, f"{name}_ms") for name in ("p50_ttft", "p99_ttft", "p50_tpot", "p99_tpot")),
            row["failed"],
        )
        lines.append("".join(f"{cell:>{width}}" for cell, width in zip(cells, _WIDTHS, strict=True)))
    if any(row["too_few_samples"] for row in report["levels"]):
        lines.append("?: fewer than 100 samples lie beyond it")
    lines += ["", report["knee_text"]]
    if report["slo"] is not None:
        level = report["slo_level"]
        best = "no level keeps" if level is None else f"level {level} is the highest that keeps"
        lines.append(f"{best} {report['slo']} for {SLO_SHARE:.0%} of its requests")
    for name, label in (("front_p50_tpot", "TPOT p50"), ("front_p99_ttft", "TTFT p99")):
        lines.append(f"best trades of throughput and {label}: levels {', '.join(map(str, report[name]))}")
    return "\n".join(lines)


_WIDTHS = (5, 10, 20, 12, 12, 11, 11, 11, 8)


def _milliseconds(row: Mapping[str, Any], key: str) -> str:
    doubt = "?" if key in row["too_few_samples"] else " "
    return "- " if row[key] is None else f"{row[key]:,.1f}{doubt}"
