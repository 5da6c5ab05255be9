"""The step log: every input and every output of a scheduler as JSON lines, enough to run it again.

The log holds prompts and outputs as token ids; it is written only where somebody asked for it. (The last steps are also
kept in memory, and saved to a file that only its owner can read if one of our invariants breaks.)
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from inflight.core.errors import InvariantViolation, Reason, Rejected, StepFailed
from inflight.core.output import SchedulerOutput, StepResult, Stop, TokenEvent
from inflight.core.request import Request, RequestId, SeqId

VERSION = 1  # of the log's lines


class Started(msgspec.Struct, tag="start", tag_field="event", frozen=True):
    """The first line: which scheduler wrote the log, and over how much memory."""

    scheduler: str
    config: dict[str, int | float | bool | str | tuple[int, ...] | None]
    num_blocks: int
    block_size: int
    num_host_blocks: int = 0
    version: int = VERSION


class Added(msgspec.Struct, tag="add", tag_field="event", frozen=True):
    """A request was queued, or refused for ``rejected``."""

    now_s: float
    request: Request
    rejected: Reason | None = None


class Aborted(msgspec.Struct, tag="abort", tag_field="event", frozen=True):
    """A caller gave a request up."""

    now_s: float
    request_id: RequestId


class Flushed(msgspec.Struct, tag="flush", tag_field="event", frozen=True):
    """Nobody else came for a while: what waited for others waited no more."""

    now_s: float


class Scheduled(msgspec.Struct, tag="schedule", tag_field="event", frozen=True):
    """A step was decided."""

    now_s: float
    output: SchedulerOutput


class Updated(msgspec.Struct, tag="update", tag_field="event", frozen=True):
    """A step ended with ``result``, or failed as a whole with ``failure``."""

    now_s: float
    step: int
    result: StepResult | None
    failure: str | None
    stops: tuple[tuple[SeqId, Stop], ...]
    events: tuple[TokenEvent, ...]


logger = logging.getLogger(__name__)
Line = Started | Added | Aborted | Flushed | Scheduled | Updated
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Line)


class Recorder:
    """An observer that turns everything it sees into lines and hands them to ``write``."""

    def __init__(self, write: Callable[[Line], None]) -> None:
        self._write = write

    def on_add(self, request: Request, rejected: Rejected | None, now_s: float) -> None:
        """Write an ``Added`` line."""
        self._write(Added(now_s, request, rejected.reason if rejected else None))

    def on_abort(self, request_id: RequestId, now_s: float) -> None:
        """Write an ``Aborted`` line."""
        self._write(Aborted(now_s, request_id))

    def on_flush(self, now_s: float) -> None:
        """Write a ``Flushed`` line."""
        self._write(Flushed(now_s))

    def on_schedule(self, output: SchedulerOutput, now_s: float) -> None:
        """Write a ``Scheduled`` line."""
        self._write(Scheduled(now_s, output))

    def on_update(
        self,
        output: SchedulerOutput,
        result: StepResult | StepFailed,
        stops: Mapping[SeqId, Stop],
        events: tuple[TokenEvent, ...],
        now_s: float,
    ) -> None:
        """Write an ``Updated`` line."""
        failed = isinstance(result, StepFailed)
        self._write(
            Updated(
                now_s,
                output.step,
                None if isinstance(result, StepFailed) else result,
                result.message if isinstance(result, StepFailed) else None,
                tuple(stops.items()) if not failed else (),
                events,
            )
        )


class StepLog:
    """A file of lines; each is handed to the system before the next step starts.

    An existing file is continued: every start of an engine begins with a ``Started`` line of its own. A last line
    that was cut short, by an engine that was killed, is removed. Raises ``OSError``, naming the file, if it cannot be
    opened; if it cannot be written later (a full disk), the log ends there and the engine goes on.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file: BinaryIO = path.open("a+b", buffering=0)
            _cut_unfinished_line(self._file)
        except OSError as error:
            raise OSError(f"the step log {path} cannot be opened: {error.strerror}") from error

    def write(self, line: Line) -> None:
        """Append a line."""
        if self._file.closed:
            return
        try:
            self._file.write(_encoder.encode(line) + b"\n")
        except OSError as error:
            logger.error("the step log %s ends here: %s", self._path, error)
            self.close()

    def close(self) -> None:
        """Close the file; what is written afterwards is dropped."""
        self._file.close()


def _cut_unfinished_line(file: BinaryIO) -> None:
    size = file.seek(0, os.SEEK_END)
    num_bytes, tail = 0, b""
    while b"\n" not in tail and num_bytes < size:
        num_bytes = min(size, max(4096, 2 * num_bytes))
        file.seek(size - num_bytes)
        tail = file.read(num_bytes)
    num_whole_bytes = size - num_bytes + tail.rfind(b"\n") + 1
    if num_whole_bytes < size:
        file.truncate(num_whole_bytes)


class RecentSteps:
    """The lines of the last steps, kept in memory for the day on which an invariant breaks."""

    def __init__(self, num_lines: int = 128) -> None:
        self._lines: deque[Line] = deque(maxlen=num_lines)

    def write(self, line: Line) -> None:
        """Keep a line, and forget the oldest."""
        self._lines.append(line)

    @contextmanager
    def saved_if_broken(self) -> Iterator[None]:
        """Save the lines if an ``InvariantViolation`` passes through, and add to its message where they are."""
        try:
            yield
        except InvariantViolation as violation:
            raise InvariantViolation(f"{violation}; the last steps are in {self._save()}") from violation

    def _save(self) -> Path:
        """Write the lines to a new file that only its owner can read, and return where it is."""
        descriptor, name = tempfile.mkstemp(prefix="inflight-last-steps-", suffix=".jsonl")
        with os.fdopen(descriptor, "wb") as file:
            # Whatever is wrong with a line must not hide what is wrong with the engine.
            encoder = msgspec.json.Encoder(enc_hook=repr)
            file.writelines(encoder.encode(line) + b"\n" for line in self._lines)
        return Path(name)


def read_step_log(path: Path) -> Iterator[Line]:
    """The lines of a step log. Raises ``ValueError``, with the line's number, for one that is not valid.

    A last line without its end, as a process that was killed leaves it, is ignored.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                yield _decoder.decode(line)
            except (msgspec.DecodeError, msgspec.ValidationError) as error:
                raise ValueError(f"{path}, line {number}: {error}") from error
