"""The step loop: take in what arrived, run one step, hand out what it gave; again, until told to stop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from inflight.core.errors import Rejected
from inflight.engine.core import EngineCore
from inflight.engine.events import ChoiceDelta, EngineInfo
from inflight.engine.recorder import RecentSteps, StepLog
from inflight.engine.wire import Abort, Add, Flush, FromEngine, Heartbeat, Refused, Step, Stop, ToEngine, read_request
from inflight.metrics.collect import Collector


@dataclass(frozen=True, slots=True)
class Engine:
    """A built engine: its core, the facts about it, and the observers that others need."""

    core: EngineCore
    info: EngineInfo
    collector: Collector
    recent: RecentSteps
    step_log: StepLog | None = None

    def close(self) -> None:
        """Release the executors and end the step log; idempotent."""
        self.core.close()
        if self.step_log is not None:
            self.step_log.close()


EngineFactory = Callable[[], Engine]  # builds the engine in its own process; must be picklable by name


def run_loop(
    engine: Engine,
    receive: Callable[[float], list[ToEngine]],
    send: Callable[[FromEngine], None],
    heartbeat_s: float,
) -> None:
    """Serve until ``Stop`` is received.

    ``receive(timeout_s)`` returns all messages that wait, or ``[]`` after ``timeout_s`` without one; ``send`` must not
    block. While there is work, every turn sends one ``Step``; where all of it waits for others, the turn sleeps in
    ``receive`` first, and its ``Step`` may be empty. A loop without work sleeps too, and sends a ``Heartbeat`` every
    ``heartbeat_s``: from here and not from a thread, so that a loop that hangs falls silent.
    Whatever ``engine`` raises other than ``Rejected`` passes through; an ``InvariantViolation`` leaves a file with the
    last steps behind and names it.
    """
    with engine.recent.saved_if_broken():
        _serve(engine, receive, send, heartbeat_s)


def _serve(
    engine: Engine,
    receive: Callable[[float], list[ToEngine]],
    send: Callable[[FromEngine], None],
    heartbeat_s: float,
) -> None:
    core = engine.core
    while True:
        messages = receive(min(core.idle_s(), heartbeat_s))
        aborted = []
        for message in messages:
            match message:
                case Add():
                    try:
                        core.add(read_request(message))
                    except Rejected as no:
                        send(Refused(message.request_id, no.reason, no.message, no.param, no.retry_after_s))
                case Abort(request_id):
                    core.abort(request_id)
                    aborted.append(request_id)
                case Flush():
                    core.flush()
                case Stop():
                    return
        if messages or core.has_work:
            deltas: list[ChoiceDelta] = core.step() if core.has_work else []
            send(Step(tuple(deltas), tuple(aborted), engine.collector.drain(), core.stats()))
        else:
            send(Heartbeat())
