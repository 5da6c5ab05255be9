"""``inflight bench``: how fast the engine and its kernels are on this machine."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from inflight import config
from inflight.bench import kernels, race

BENCHMARKS = {  # name: what it does
    "engine": "run the same work several times, in this process or over HTTP",
    "kernels": "hold each kernel against what the machine can do (a roofline table)",
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add what this command takes."""
    parser.set_defaults(json=None)
    subparsers = parser.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK", prog="inflight bench")
    for name, does in BENCHMARKS.items():
        subparser = subparsers.add_parser(name, help=does, description=does, allow_abbrev=False)
        subparser.add_argument("--json", type=Path, metavar="OUT", help="write the whole report to this file")
        if name == "engine":
            config.add_flags(subparser, race.RaceConfig)
            config.add_flags(subparser, config.EngineConfig)
        else:
            config.add_flags(subparser, kernels.KernelsConfig)


def run(args: argparse.Namespace) -> int:
    """Run the benchmark, print its figures, and write the report where that was asked for."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # no server is left behind
    if args.benchmark == "engine":
        race_config = config.from_args(race.RaceConfig, args)
        report = race.race(race_config, config.given_values(config.EngineConfig, args))
        text = race.as_text(report)
    else:
        report = kernels.measure(config.from_args(kernels.KernelsConfig, args))
        text = kernels.as_text(report)
    print(text)
    if args.json is not None:
        _write(args.json, report)
    return 0


def _write(path: Path, report: Mapping[str, Any]) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    print(f"the report is in {path}", file=sys.stderr)
