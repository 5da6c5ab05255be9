"""The engine's process, seen from inside: set up, build the engine, run its loop, leave.

The parent starts it through ``BOOT`` and sends two pickles down its stdin: the module search path and a ``Launch``.
Nothing else comes through stdin; its end means that the parent is gone.
"""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import math
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass

import zmq

from inflight.core.errors import InflightError, InvariantViolation
from inflight.engine.loop import Engine, run_loop
from inflight.engine.wire import Failed, Message, Ready, ToEngine, decode_to_engine, encode

BOOT = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); "
    "from inflight.engine.ipc_child import main; main()"
)
DUMP_STACKS_SIGNAL = signal.SIGUSR1  # writes where every thread stands to stderr
LINGER_MS = 5000  # how long the last message may take to leave

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Launch:
    """What the process needs to know."""

    factory: bytes  # a pickled EngineFactory, opened only where an error can be reported
    address: str  # the parent's zmq PAIR socket
    heartbeat_s: float
    log_level: int


def main() -> None:
    """Run the engine's process; exits with 1 if the engine failed."""
    # Signals of the terminal and of service managers reach the whole group. The parent decides when the engine ends:
    # it may still have requests to finish.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    faulthandler.enable()
    faulthandler.register(DUMP_STACKS_SIGNAL)
    launch: Launch = pickle.load(sys.stdin.buffer)
    _die_with_parent()
    _log_to_stderr(launch.log_level)

    context = zmq.Context()
    socket = context.socket(zmq.PAIR)
    # Without bounds on either side a send never blocks: the parent always reads, and bounds what it keeps.
    socket.set_hwm(0)
    socket.connect(launch.address)
    failed = False
    try:
        _serve(launch, socket)
    except BaseException as error:
        failed = True
        if isinstance(error, ValueError | OSError | InflightError) and not isinstance(error, InvariantViolation):
            logger.error("%s", error)  # said in words for people: the model, the configuration or the machine
        else:
            logger.exception("the engine failed")
        _send(socket, Failed(f"{type(error).__name__}: {error}"))
    socket.close(LINGER_MS)
    context.term()
    # Through the interpreter's own end, so that open files are written out.
    sys.exit(1 if failed else 0)


def _serve(launch: Launch, socket: zmq.Socket[bytes]) -> None:
    factory: Callable[[], Engine] = pickle.loads(launch.factory)
    engine = factory()
    try:
        _send(socket, Ready(engine.info))
        run_loop(
            engine,
            receive=lambda timeout_s: _receive(socket, timeout_s),
            send=lambda message: _send(socket, message),
            heartbeat_s=launch.heartbeat_s,
        )
    finally:
        engine.close()


def _receive(socket: zmq.Socket[bytes], timeout_s: float) -> list[ToEngine]:
    messages: list[ToEngine] = []
    if socket.poll(math.ceil(timeout_s * 1000)):
        while True:
            try:
                messages.append(decode_to_engine(socket.recv(zmq.NOBLOCK)))
            except zmq.Again:
                break
    return messages


def _send(socket: zmq.Socket[bytes], message: Message) -> None:
    socket.send(encode(message), zmq.NOBLOCK)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        # The kernel's own way works even while this process is stuck in native code.
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    threading.Thread(target=_exit_at_end_of_stdin, name="parent-watch", daemon=True).start()


def _exit_at_end_of_stdin() -> None:
    # os.read, because a thread that waits inside sys.stdin holds its lock, which the interpreter's end wants.
    while os.read(0, 1):
        pass
    os._exit(1)


class _PrefixedLines(logging.Formatter):
    """Puts the process's name before every line, those of tracebacks too."""

    def __init__(self, prefix: str) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._prefix = prefix

    def format(self, record: logging.LogRecord) -> str:
        """The record's lines, each with the prefix."""
        return "\n".join(self._prefix + line for line in super().format(record).splitlines())


def _log_to_stderr(level: int) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(_PrefixedLines(f"[engine {os.getpid()}] "))
    logging.basicConfig(level=level, handlers=[handler])
    logging.captureWarnings(True)
