"""One engine process, seen from its parent: started, spoken to, and always reaped."""

from __future__ import annotations

import asyncio
import logging
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import zmq
import zmq.asyncio

from inflight.engine.ipc_child import BOOT, DUMP_STACKS_SIGNAL, Launch
from inflight.engine.loop import EngineFactory
from inflight.engine.wire import FromEngine, Ready, decode_from_engine

STDERR = 2

logger = logging.getLogger(__name__)


class EngineProcess:
    """A running engine process. Each has a socket of its own, so that its messages never mix with another's.

    Not asyncio's own subprocess: its creation cannot be cancelled safely, because the exit of a process whose pipes
    are not connected yet is never told to whoever waits for it.
    """

    def __init__(self, process: subprocess.Popen[bytes], socket: zmq.asyncio.Socket, folder: Path) -> None:
        self._process = process
        self._socket = socket
        self._folder = folder
        self._exited = asyncio.Event()
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._reap, args=(loop,), name="engine-reap", daemon=True).start()

    def send(self, data: bytes) -> None:
        """Send an encoded message; never blocks. Lost if the process has ended."""
        # Sent before this returns, or queued by the socket, in order; what the future would say, wait() says.
        self._socket.send(data)

    async def receive(self) -> FromEngine:
        """The next message, whenever it comes."""
        message = decode_from_engine(await self._socket.recv())
        if isinstance(message, Ready):
            # The two are connected and need the address no more; from now on no kill can leave a file behind.
            shutil.rmtree(self._folder, ignore_errors=True)
        return message

    async def wait(self) -> int:
        """Wait for the end of the process; its exit status, or minus the signal that killed it."""
        await self._exited.wait()
        return self._process.wait()

    def dump_stacks(self) -> None:
        """Have the process write where each of its threads stands to stderr."""
        self._process.send_signal(DUMP_STACKS_SIGNAL)

    async def end(self, grace_s: float) -> None:
        """Wait ``grace_s`` for the process to leave by itself, then kill it."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._exited.wait(), grace_s)
        await self.kill()

    async def kill(self) -> None:
        """Kill the process if it still runs, and reap it."""
        self._process.kill()
        await self._exited.wait()

    def _reap(self, loop: asyncio.AbstractEventLoop) -> None:
        self._process.wait()
        with suppress(RuntimeError):  # the event loop is closed: nobody waits
            loop.call_soon_threadsafe(self._exited.set)


@asynccontextmanager
async def spawn(factory: EngineFactory, heartbeat_s: float) -> AsyncIterator[EngineProcess]:
    """Start an engine process; on leaving, it and its traces are gone, whatever happened.

    Must be entered from a thread that lives as long as the engine shall: on Linux the engine dies with it.
    Raises whatever pickling ``factory`` raises, and ``OSError``.
    """
    folder = Path(tempfile.mkdtemp(prefix="inflight-"))  # mode 0700: nobody else can connect
    context = zmq.asyncio.Context()
    try:
        address = f"ipc://{folder}/engine"
        socket = context.socket(zmq.PAIR)
        socket.set_hwm(0)
        socket.bind(address)
        level = logging.getLogger().getEffectiveLevel()
        launch = Launch(pickle.dumps(factory), address, heartbeat_s, level)
        # stdout is the caller's: whatever the engine or its libraries print goes to stderr.
        process = subprocess.Popen([sys.executable, "-c", BOOT], stdin=subprocess.PIPE, stdout=STDERR)
        engine = EngineProcess(process, socket, folder)
        assert process.stdin is not None
        try:
            with suppress(BrokenPipeError):  # it died already: wait() will tell
                process.stdin.write(pickle.dumps(sys.path) + pickle.dumps(launch))
                process.stdin.flush()
            logger.info("engine process %d started", process.pid)
            yield engine
        finally:
            await engine.kill()
            with suppress(BrokenPipeError):
                process.stdin.close()
    finally:
        context.destroy(linger=0)
        shutil.rmtree(folder, ignore_errors=True)


def describe_exit(returncode: int) -> str:
    """An exit status, in words."""
    if returncode >= 0:
        return f"the engine process exited with code {returncode}"
    number = -returncode
    with suppress(ValueError):
        return f"the engine process was killed by signal {number} ({signal.Signals(number).name})"
    return f"the engine process was killed by signal {number}"
