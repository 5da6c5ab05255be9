"""``inflight compare``: static, dynamic and continuous batching on the same requests, side by side."""

from __future__ import annotations

import argparse
import sys

from inflight import config
from inflight.compare.config import MIX_OUTPUTS, MIX_PROMPTS, CompareConfig
from inflight.compare.folder import PAGE
from inflight.compare.report import compare
from inflight.compare.text import as_text
from inflight.config import LoadConfig
from inflight.workload.config import WorkloadConfig


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add what this command takes."""
    parser.epilog = (
        f"Without a trace: {MIX_PROMPTS['num_requests']} requests, prompts of {MIX_PROMPTS['prompt_tokens']} tokens "
        f"and answers of {MIX_OUTPUTS} tokens, unless the flags of the workload say otherwise."
    )
    for one in (CompareConfig, WorkloadConfig, LoadConfig):
        config.add_flags(parser, one)
    parser.add_argument(
        "--rate", dest="request_rate", type=float, default=argparse.SUPPRESS, help="the same as --request-rate"
    )


def run(args: argparse.Namespace) -> int:
    """Run the comparison, write its folder, and print what came out."""
    asked = config.from_args(CompareConfig, args)
    settings = config.from_args(LoadConfig, args)
    model_values = config.given_values(LoadConfig, args)
    if asked.step_cost is not None and model_values:
        raise ValueError(f"{config.flag(min(model_values))} is for a model, and with --step-cost none is loaded")
    workload_values = config.given_values(WorkloadConfig, args)
    given = {**config.given_values(CompareConfig, args), **workload_values, **model_values}
    results = compare(asked, settings, workload_values, given)
    print(as_text(results))
    print(f"the page is {asked.out / PAGE}", file=sys.stderr)
    if results["interrupted"]:
        raise KeyboardInterrupt
    return 0
