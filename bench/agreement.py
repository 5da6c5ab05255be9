"""What callers see against what the engine says of itself: `inflight bench serve` beside /metrics and the log.

    python bench/agreement.py [FLAGS]

FLAGS are those of `inflight bench serve`, but for where the load goes: a server is started, the load is run on it once,
and /metrics is read just before and just after. Counters are compared as a rate over the time between the two readings,
histograms by their means. The server's median TTFT is that of the records in its log, one for each request (queue and
prefill), and the mean time to emit a first token.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from inflight import config
from inflight.bench.outcome import run_duration_s
from inflight.bench.over_http import as_flags
from inflight.bench.run_summary import summarize_run
from inflight.bench.serve import ServeConfig, run_with_bar, warm_up
from inflight.bench.target import TargetConfig, open_target
from inflight.metrics import definitions as d
from inflight.workload.build import build_workload
from inflight.workload.config import WorkloadConfig

RECORD = " inflight.request: "


@contextmanager
def serving(values: Mapping[str, Any], log: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "inflight.cli", "serve", "--port=0", *as_flags(values)]
    with (
        log.open("wb") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as server,
    ):
        try:
            words = (word for line in server.stdout or () for word in line.split())
            url = next((word for word in words if word.startswith("http://")), None)
            if url is None:
                sys.exit(log.read_text(errors="replace"))
            yield url
        finally:
            server.terminate()


def scrape(http: httpx.Client) -> tuple[float, dict[str, float]]:
    """When, and all samples by name and labels."""
    lines = http.get("/metrics").raise_for_status().text.splitlines()
    samples = {name: float(value) for line in lines if line[:1] != "#" for name, _, value in [line.rpartition(" ")]}
    return time.monotonic(), samples


def mean_ms(metric: d.Metric, before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """The mean of a histogram's samples between two readings, over all labels."""

    def gained(part: str) -> float:
        return sum(after[name] - before.get(name, 0.0) for name in after if name.startswith(f"{metric.name}_{part}"))

    return 1e3 * gained("sum") / gained("count") if gained("count") else float("nan")


def records(log: Path) -> list[dict[str, Any]]:
    lines = log.read_text(errors="replace").splitlines()
    return [json.loads(line.split(RECORD, 1)[1]) for line in lines if RECORD in line]


def compare(args: argparse.Namespace, url: str, log: Path) -> list[tuple[str, float, float, str]]:
    """(figure, callers', server's, unit)."""
    serve_config = config.from_args(ServeConfig, args)
    engine_values = config.given_values(config.EngineConfig, args)
    target_config = TargetConfig(base_url=url, tokenizer=engine_values.get("model"))
    with open_target(target_config, {}) as target, httpx.Client(base_url=url) as http:
        workload = build_workload(
            config.from_args(WorkloadConfig, args), target.vocab_size, target.max_model_len, target.tokenizer.encode
        )
        warm_up(target, workload.items, serve_config.num_warmups, serve_config.max_concurrency)
        num_before = len(records(log))
        before_s, before = scrape(http)
        outcomes = run_with_bar(target, workload.items, serve_config.max_concurrency, "requests")
        after_s, after = scrape(http)
    ours = summarize_run(outcomes, run_duration_s(outcomes))
    ended = records(log)[num_before:]
    span_s = after_s - before_s
    sys.stderr.write(f"{len(outcomes)} requests, {ours['failed']} failed; {span_s:.2f} s between the two readings\n")

    def mean(metric: d.Metric) -> float:
        return mean_ms(metric, before, after)

    def rate(metric: d.Metric) -> float:
        return (after[metric.name] - before[metric.name]) / span_s

    ttft_ms = [1e3 * record["ttft_s"] for record in ended if record["ttft_s"] is not None]
    return [
        ("output tokens/s", ours["output_throughput"], rate(d.OUTPUT_TOKENS), ""),
        ("input tokens/s", ours["inflight"]["input_throughput"], rate(d.PROMPT_TOKENS), ""),
        ("TTFT, median", ours["median_ttft_ms"], statistics.median(ttft_ms) + mean(d.EMIT), "ms"),
        ("TTFT, mean", ours["mean_ttft_ms"], mean(d.TTFT), "ms"),
        ("TPOT, mean", ours["mean_tpot_ms"], mean(d.TPOT), "ms"),
        ("ITL, mean", ours["mean_itl_ms"], mean(d.ITL), "ms"),
        ("E2E, mean", ours["mean_e2el_ms"], mean(d.E2E), "ms"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for one in (ServeConfig, WorkloadConfig, config.EngineConfig):
        config.add_flags(parser, one)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.txt"
        with serving(config.given_values(config.EngineConfig, args), log) as url:
            rows = compare(args, url, log)
    print(f"{'':<16}{'callers':>12}{'server':>12}{'difference':>22}")
    for name, ours, theirs, unit in rows:
        difference = f"{ours - theirs:+.2f} {unit} ({ours / theirs - 1:+.2%})"
        print(f"{name:<16}{ours:>12.2f}{theirs:>12.2f}{difference:>22}")


if __name__ == "__main__":
    main()
