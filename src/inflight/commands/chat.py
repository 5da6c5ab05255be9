"""``inflight chat``: a conversation in the terminal."""

from __future__ import annotations

import argparse
import contextlib
import sys

from inflight import config
from inflight.commands.terminal import Answer, AnswerConfig, chat_prompt, check_open, open_llm
from inflight.core.errors import Rejected
from inflight.core.output import FinishReason
from inflight.core.request import SamplingParams
from inflight.llm import LLM

HELP = "/reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add what this command takes."""
    config.add_flags(parser, AnswerConfig)
    config.add_flags(parser, config.EngineConfig, positional=("model",))


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    check_open("stdin", "stdout")
    answer_config = config.from_args(AnswerConfig, args)
    sampling = answer_config.sampling()
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # input() then edits lines and remembers them
    with open_llm(args, answer_config) as llm:
        print(f"{llm.info.model_name}: {HELP}", file=sys.stderr)
        talk(llm, sampling)
    return 0


def talk(llm: LLM, sampling: SamplingParams) -> None:
    """Read lines and answer them until the input ends."""
    messages: list[dict[str, str]] = []
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "").strip()
        except KeyboardInterrupt:
            print()
            continue
        except EOFError:
            return
        if line == "/exit":
            return
        if line == "/reset":
            messages.clear()
        elif line.startswith("/"):
            print(HELP, file=sys.stderr)
        elif line:
            _answer(llm, messages, line, sampling)


def _answer(llm: LLM, messages: list[dict[str, str]], line: str, sampling: SamplingParams) -> None:
    """Answer ``line`` and add both to ``messages``; what was said before an interrupt counts as said."""
    asked = {"role": "user", "content": line}
    answer = Answer()
    try:
        answer.write(llm, chat_prompt(llm, [*messages, asked]), sampling)
    except Rejected as error:
        print(f"{error}; /reset starts anew", file=sys.stderr)
        return
    except KeyboardInterrupt:
        pass
    print(flush=True)
    if answer.finish_reason is FinishReason.LENGTH:
        print("(cut: the answer has reached its limit)", file=sys.stderr)
    messages += [asked, {"role": "assistant", "content": answer.text}]
