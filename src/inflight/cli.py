"""The command ``inflight``: one module of ``inflight.commands`` for each of its commands."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Sequence

from inflight import __version__
from inflight.core.errors import InflightError, Rejected

COMMANDS = {  # name: (what it takes, what it does)
    "serve": ("[flags] [model]", "serve a model over HTTP, with the OpenAI API"),
    "generate": ("[flags] prompt", "stream one answer"),
    "chat": ("[flags] [model]", "talk in the terminal"),
    "pull": ("[model]", "fetch a model ahead of time"),
    "plan": ("memory [flags] [model]", "reckon, before a model is loaded, what it takes and how many callers fit"),
    "explain": ("[flags] STEPLOG", "show what every step of a run did: pictures and the ledger of waste"),
    "compare": ("[flags]", "run static, dynamic and continuous batching on the same requests, and show what each did"),
    "bench": ("BENCHMARK [flags]", "measure: a server under load, batch sizes, the engine, its kernels"),
}
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0, 1 if it could not be done, 2 if it was asked for wrongly."""
    try:
        return _run(sys.argv[1:] if argv is None else list(argv))
    except (ValueError, Rejected) as error:
        return _complain(error, EXIT_USAGE)
    except BrokenPipeError:
        # The reader has had enough. What is left in the buffer goes nowhere, or the interpreter would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except (InflightError, OSError) as error:
        return _complain(error, EXIT_FAILED)
    except KeyboardInterrupt:  # also while a command's modules are imported, which takes a while
        return EXIT_INTERRUPTED


def _run(argv: list[str]) -> int:
    if sys.stderr is None:  # closed by the caller: what is said there goes nowhere
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, open until the end
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # text is UTF-8 whatever the locale, and never an error
            stream.reconfigure(encoding="utf-8", errors="replace")
    parser = argparse.ArgumentParser(prog="inflight", description="A language-model server whose subject is batching.")
    parser.add_argument("--version", action="version", version=f"inflight {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (takes, does) in COMMANDS.items():
        subparser = subparsers.add_parser(
            name, help=does, description=does, usage=f"inflight {name} [-h] {takes}", allow_abbrev=False
        )
        if argv[:1] == [name]:  # the modules of the others, and what they import, are not needed
            command = importlib.import_module(f"inflight.commands.{name}")
            command.add_flags(subparser)
    args = parser.parse_args(argv)
    exit_code: int = command.run(args)
    return exit_code


def _complain(error: Exception, exit_code: int) -> int:
    print(f"inflight: {error}", file=sys.stderr)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
