"""``inflight bench``: how fast the engine, its kernels, and any server are on this machine."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from inflight import config
from inflight.bench import curve, curve_report, kernels, race, serve, serve_text, static_sweep
from inflight.bench.target import TargetConfig
from inflight.workload.config import WorkloadConfig


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add what this command takes."""
    parser.set_defaults(json=None)
    subparsers = parser.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK", prog="inflight bench")
    for name, benchmark in BENCHMARKS.items():
        subparser = subparsers.add_parser(name, help=benchmark.does, description=benchmark.does, allow_abbrev=False)
        subparser.add_argument("--json", type=Path, metavar="OUT", help="write the whole report to this file")
        for one in benchmark.configs:
            config.add_flags(subparser, one)


def run(args: argparse.Namespace) -> int:
    """Run the benchmark, print its figures, and write the report where that was asked for."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # no server is left behind
    report = BENCHMARKS[args.benchmark].run(args)
    if args.json is not None:
        _write(args.json, report)
    if report.get("inflight", {}).get("num_not_ended"):
        raise KeyboardInterrupt
    return 0


def _engine(args: argparse.Namespace) -> Mapping[str, Any]:
    report = race.race(config.from_args(race.RaceConfig, args), config.given_values(config.EngineConfig, args))
    print(race.as_text(report))
    return report


def _serve(args: argparse.Namespace) -> Mapping[str, Any]:
    report = serve.bench_serve(
        config.from_args(serve.ServeConfig, args),
        config.from_args(TargetConfig, args),
        config.from_args(WorkloadConfig, args),
        config.given_values(config.EngineConfig, args),
    )
    print(serve_text.serve_text(report))
    return report


def _curve(args: argparse.Namespace) -> Mapping[str, Any]:
    curve_config = config.from_args(curve.CurveConfig, args)
    report = curve.bench_curve(
        curve_config,
        config.from_args(TargetConfig, args),
        config.from_args(WorkloadConfig, args),
        config.given_values(config.EngineConfig, args),
    )
    print(curve_report.curve_text(report))
    print(f"the curve is in {curve_config.out}.csv, .svg and .png", file=sys.stderr)
    return report


def _static_sweep(args: argparse.Namespace) -> Mapping[str, Any]:
    rows: list[static_sweep.SweepRow] = []
    values = config.given_values(config.EngineConfig, args)
    for row in static_sweep.static_sweep(config.from_args(static_sweep.SweepConfig, args), values):
        if not rows:
            print(f"prompts of {row.num_prompt_tokens} tokens, {row.num_output_tokens} new tokens for each sequence")
        rows.append(row)
        print(row.as_text(), flush=True)
    print("\n".join(static_sweep.REMARKS))
    return static_sweep.sweep_report(rows)


def _kernels(args: argparse.Namespace) -> Mapping[str, Any]:
    report = kernels.measure(config.from_args(kernels.KernelsConfig, args))
    print(kernels.as_text(report))
    return report


def _write(path: Path, report: Mapping[str, Any]) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    print(f"the report is in {path}", file=sys.stderr)


class Benchmark(NamedTuple):
    """What it does, where its flags come from, and how it is run: it prints its figures and returns the report."""

    does: str
    configs: tuple[type, ...]
    run: Callable[[argparse.Namespace], Mapping[str, Any]]


BENCHMARKS = {
    "engine": Benchmark(
        "run the same work several times, in this process or over HTTP", (race.RaceConfig, config.EngineConfig), _engine
    ),
    "serve": Benchmark(
        "put a load on a server, as its callers would, and report what they saw",
        (serve.ServeConfig, TargetConfig, WorkloadConfig, config.EngineConfig),
        _serve,
    ),
    "curve": Benchmark(
        "throughput and latency at every number of callers, and where it stops to pay",
        (curve.CurveConfig, TargetConfig, WorkloadConfig, config.EngineConfig),
        _curve,
    ),
    "static-sweep": Benchmark(
        "one static batch of the same prompt, at every batch size",
        (static_sweep.SweepConfig, config.EngineConfig),
        _static_sweep,
    ),
    "kernels": Benchmark(
        "hold each kernel against what the machine can do (a roofline table)", (kernels.KernelsConfig,), _kernels
    ),
}
