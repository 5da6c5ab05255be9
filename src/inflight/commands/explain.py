"""``inflight explain``: what a step log says, as pictures and as a ledger."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from inflight import config
from inflight.explain import chrome_trace, html, kv_layout, svg, text
from inflight.explain.log import open_log
from inflight.explain.overload import judge, queue_samples
from inflight.explain.read_timeline import read_timeline
from inflight.explain.view import COLUMNS, ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainConfig:
    """The picture. Raises ``ValueError`` for a value out of range."""

    html: Path | None = field(default=None, metadata={"help": "write a page to zoom and hover in, in one file"})
    svg: Path | None = field(default=None, metadata={"help": "write the picture as SVG"})
    chrome_trace: Path | None = field(
        default=None, metadata={"help": "write a Chrome trace, for ui.perfetto.dev (JSON)"}
    )
    kv_layout: Path | None = field(default=None, metadata={"help": "write a picture of the KV memory, as SVG"})
    step: int | None = field(
        default=None, metadata={"help": "of --kv-layout: after which step; none: the one with the most allocated"}
    )
    rows: str = field(default="seats", metadata={"help": "a row for each of these", "choices": ROWS})
    columns: str = field(default="steps", metadata={"help": "what lies along the picture", "choices": COLUMNS})
    first_step: int = field(default=0, metadata={"help": "leave out the steps before this one, from 0"})
    num_steps: int | None = field(default=None, metadata={"help": "so many steps, from 1; none: all"})
    width: int = field(default=80, metadata={"help": f"characters of a line in the terminal, from {text.MIN_WIDTH}"})

    def __post_init__(self) -> None:
        for name, least in (("first_step", 0), ("num_steps", 1), ("step", 0), ("width", text.MIN_WIDTH)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if self.step is not None and self.kv_layout is None:
            raise ValueError("--step says which step --kv-layout draws: it needs --kv-layout")

    def check_outputs(self, steplog: Path) -> None:
        """Raise ``ValueError`` if a picture would overwrite the log, or another picture."""
        taken = [steplog.resolve()]
        for path in (self.html, self.svg, self.chrome_trace, self.kv_layout):
            if path is not None and path.resolve() in taken:
                raise ValueError(f"{path} would be overwritten: each picture needs a file of its own")
            taken += [path.resolve()] if path is not None else []


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add what this command takes."""
    parser.add_argument("steplog", type=Path, metavar="STEPLOG", help="what --step-log of inflight serve wrote")
    config.add_flags(parser, ExplainConfig)


def run(args: argparse.Namespace) -> int:
    """Write the pictures that were asked for, or print one, and print the ledger."""
    wanted = config.from_args(ExplainConfig, args)
    wanted.check_outputs(args.steplog)
    log = open_log(args.steplog)
    timeline = read_timeline(log)
    if wanted.first_step or wanted.num_steps is not None:
        timeline = timeline.clip(wanted.first_step, wanted.num_steps)
    pictures: tuple[tuple[Path | None, Callable[[], str | bytes]], ...] = (
        (wanted.html, lambda: html.draw(timeline, wanted.rows, wanted.columns)),
        (wanted.svg, lambda: svg.draw(timeline, wanted.rows, wanted.columns)),
        (wanted.chrome_trace, lambda: chrome_trace.draw(timeline)),
        (wanted.kv_layout, lambda: kv_layout.draw(log, wanted.step)),
    )
    written = [path for path, _ in pictures if path is not None]
    for path, draw in pictures:
        if path is not None:
            drawn = draw()
            path.write_bytes(drawn if isinstance(drawn, bytes) else drawn.encode())
    if written:
        print(text.title(timeline), *timeline.notes, sep="\n")
    else:
        print(text.draw(timeline, wanted.rows, wanted.columns, wanted.width))
    print()
    print(text.ledger_table(timeline))
    print(judge(queue_samples(timeline)))
    for path in written:
        print(f"written: {path}")
    return 0
