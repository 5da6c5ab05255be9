"""``inflight pull``: fetch a model ahead of time."""

from __future__ import annotations

import argparse

from inflight.hub.resolve import resolve


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add what this command takes."""
    parser.add_argument("model", nargs="?", help="a hub name; absent: the built-in model")


def run(args: argparse.Namespace) -> int:
    """Fetch the model, unless it is there, and print where it is."""
    print(resolve(args.model).path)
    return 0
