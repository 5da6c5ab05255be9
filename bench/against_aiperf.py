"""Our load generator and NVIDIA's AIPerf on one server, in turn: what each says, and what the server says meanwhile.

    python bench/against_aiperf.py --aiperf PATH/bin/aiperf --tokenizer FOLDER [--rounds 3] [FLAGS]

FLAGS are those of the engine. AIPerf is another package (`pip install aiperf`, in an environment of its own); it makes
its prompts with a tokenizer in FOLDER (tokenizer.json and tokenizer_config.json), so the prompts differ, but not their
lengths. Its inter-token latency is the mean of a request, which is TPOT here. HF_HUB_OFFLINE must not be set: with it
AIPerf takes FOLDER for the name of a repository. A generator that needs processors of its own slows the server down:
compare each with the server's own figure beside it, and the two figures of the server with each other.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

import httpx
from agreement import mean_ms, scrape

from inflight import config
from inflight.bench.outcome import run_duration_s
from inflight.bench.over_http import serving
from inflight.bench.run_summary import summarize_run
from inflight.bench.serve import run_with_bar
from inflight.bench.target import Target, TargetConfig, open_target
from inflight.metrics import definitions as d
from inflight.workload.build import build_workload
from inflight.workload.config import WorkloadConfig

FIGURES = (  # label, our key, AIPerf's metric, the server's
    ("output tokens/s", "output_throughput", "output_token_throughput", None),
    ("TTFT mean, ms", "mean_ttft_ms", "time_to_first_token", d.TTFT),
    ("TPOT mean, ms", "mean_tpot_ms", "inter_token_latency", d.TPOT),
    ("E2E mean, ms", "mean_e2el_ms", "request_latency", d.E2E),
)
Row = list[tuple[float, float]]  # of each figure, (the generator's, the server's)


def run_ours(target: Target, args: argparse.Namespace, seed: int) -> list[float]:
    config = WorkloadConfig(
        num_requests=args.num_requests, prompt_tokens=args.prompt_tokens, output_tokens=args.output_tokens, seed=seed
    )
    work = build_workload(config, target.vocab_size, target.max_model_len)
    outcomes = run_with_bar(target, work.items, args.max_concurrency, "ours")
    figures = summarize_run(outcomes, run_duration_s(outcomes))
    return [figures[ours] for _, ours, _, _ in FIGURES]


def run_aiperf(url: str, model: str, args: argparse.Namespace) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        command = [
            args.aiperf, "profile", "-m", model, "--url", url, "--endpoint-type", "completions", "--streaming",
            "--tokenizer", args.tokenizer, "--concurrency", str(args.max_concurrency),
            "--request-count", str(args.num_requests), "--isl", args.prompt_tokens, "--osl", args.output_tokens,
            "--extra-inputs", "ignore_eos:true", "--output-artifact-dir", folder, "--ui", "none",
            "--workers-max", "1", "--record-processors", "1", "--no-server-metrics", "--no-gpu-telemetry",
        ]  # fmt: skip
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        report = json.loads((Path(folder) / "profile_export_aiperf.json").read_text())
    return [report[theirs]["avg"] for _, _, theirs, _ in FIGURES]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--aiperf", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--num-requests", type=int, default=64)
    parser.add_argument("--max-concurrency", type=int, default=8)
    parser.add_argument("--prompt-tokens", default="100")
    parser.add_argument("--output-tokens", default="50")
    config.add_flags(parser, config.EngineConfig)
    args = parser.parse_args()
    values = config.given_values(config.EngineConfig, args)
    rows: dict[str, list[Row]] = {"inflight": [], "AIPerf": []}
    with (
        serving(values) as server,
        httpx.Client(base_url=server.url) as http,
        open_target(TargetConfig(base_url=server.url, tokenizer=values.get("model")), {}) as target,
    ):
        for seed in range(args.rounds):
            for name in rows:
                _, before = scrape(http)
                said = (
                    run_ours(target, args, seed)
                    if name == "inflight"
                    else run_aiperf(server.url, target.model_id, args)
                )
                _, after = scrape(http)
                server_said = [float("nan") if one is None else mean_ms(one, before, after) for *_, one in FIGURES]
                rows[name].append(list(zip(said, server_said, strict=True)))
                print(f"round {seed + 1}: {name} {said[0]:.1f} output tokens/s", flush=True)
    print(f"medians of {args.rounds} rounds, {os.cpu_count()} processors")
    print(f"{'':<18}" + "".join(f"{name:>10}{'server':>10}{'':>9}" for name in rows))
    for index, (label, *_, metric) in enumerate(FIGURES):
        line = f"{label:<18}"
        for runs in rows.values():
            theirs, servers = (statistics.median(run[index][which] for run in runs) for which in (0, 1))
            line += f"{theirs:>10.2f}"
            line += f"{'':>19}" if metric is None else f"{servers:>10.2f}{theirs / servers - 1:>+9.1%}"
        print(line.rstrip())


if __name__ == "__main__":
    main()
