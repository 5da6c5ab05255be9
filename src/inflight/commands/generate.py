"""``inflight generate``: stream one answer."""

from __future__ import annotations

import argparse
import sys

from inflight import config
from inflight.commands.terminal import Answer, AnswerConfig, chat_prompt, check_open, open_llm


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add what this command takes."""
    parser.add_argument("prompt", help="what to answer; - reads it from stdin")
    parser.add_argument("--raw", action="store_true", help="continue the text as it is, without the chat template")
    config.add_flags(parser, AnswerConfig)
    config.add_flags(parser, config.EngineConfig)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    check_open("stdout", *(["stdin"] if args.prompt == "-" else []))
    answer_config = config.from_args(AnswerConfig, args)
    sampling = answer_config.sampling()
    # An argument that is not UTF-8 arrives as lone surrogates.
    prompt = (
        sys.stdin.read()
        if args.prompt == "-"
        else args.prompt.encode(errors="surrogateescape").decode(errors="replace")
    )
    with open_llm(args, answer_config) as llm:
        Answer().write(llm, prompt if args.raw else chat_prompt(llm, [{"role": "user", "content": prompt}]), sampling)
    print()
    return 0
