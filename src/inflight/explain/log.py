"""A step log as it is read to be explained: the last engine of the file, one ended step after the other."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from inflight.core.output import SchedulerOutput
from inflight.engine.recorder import VERSION, Aborted, Added, Line, Scheduled, Started, Updated, read_step_log
from inflight.schedulers.config import SchedulerConfig
from inflight.schedulers.registry import config_from_log

MAX_BLOCKS = 2**22  # of a KV memory, and tokens of a block: beyond, a log is damaged


class StepDone(NamedTuple):
    """A step that was decided and has ended: its two lines as one."""

    output: SchedulerOutput
    start_s: float
    update: Updated


@dataclass(frozen=True, slots=True)
class EngineLog:
    """What one engine wrote into a step log."""

    path: Path
    started: Started
    num_engines: int  # that wrote into the file; this is the last of them
    config: SchedulerConfig

    def events(self) -> Iterator[Added | Aborted | Scheduled | StepDone]:
        """What happened, in order; a step comes twice, as ``Scheduled`` when it begins and as ``StepDone``.

        Raises ``ValueError`` for a line that is not valid, or that cannot follow those before it.
        """
        running: dict[int, Scheduled] = {}
        for line in self._lines():
            match line:
                case Scheduled(_, output):
                    running[output.step] = line
                    yield line
                case Updated(_, step):
                    if (begun := running.pop(step, None)) is None:
                        raise ValueError(f"{self.path}: step {step} ends, but the log does not hold its beginning")
                    yield StepDone(begun.output, begun.now_s, line)
                case Added() | Aborted():
                    yield line

    def steps(self) -> Iterator[StepDone]:
        """The steps that ended. Raises as ``events`` does."""
        return (event for event in self.events() if isinstance(event, StepDone))

    def _lines(self) -> Iterator[Line]:
        num_started = 0
        for line in read_step_log(self.path):
            if num_started == self.num_engines:
                yield line
            num_started += isinstance(line, Started)


def open_log(path: Path) -> EngineLog:
    """The last engine of a step log.

    Raises ``OSError``, naming the file, if it cannot be read, and ``ValueError`` if it is no step log.
    """
    try:
        num_engines = _num_starts(path)
        first = next(read_step_log(path), None)
    except OSError as error:
        raise OSError(f"the step log {path} cannot be read: {error.strerror}") from error
    if first is None:
        raise ValueError(f"{path} is no step log: it holds no whole line")
    if not isinstance(first, Started):
        raise ValueError(f"{path}, line 1: a step log begins with a start line")
    starts = (line for line in read_step_log(path) if isinstance(line, Started))
    started = next(itertools.islice(starts, num_engines - 1, None))
    if started.version != VERSION:
        raise ValueError(f"{path}: the log is of version {started.version}, which is not known here")
    if not (0 < started.num_blocks <= MAX_BLOCKS and 0 < started.block_size <= MAX_BLOCKS):
        raise ValueError(f"{path}: a KV memory of {started.num_blocks} blocks of {started.block_size} tokens cannot be")
    return EngineLog(path, started, num_engines, config_from_log(started.scheduler, started.config))


class _Kind(msgspec.Struct):
    event: str


def _num_starts(path: Path) -> int:
    """How many engines wrote into the file; of the lines, only the kind is read."""
    decoder = msgspec.json.Decoder(_Kind)
    num_starts = 0
    with path.open("rb") as file:
        for line in file:
            with contextlib.suppress(msgspec.DecodeError):  # whoever reads the line will say what is wrong with it
                num_starts += line.endswith(b"\n") and decoder.decode(line).event == "start"
    return num_starts
