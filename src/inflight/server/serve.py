"""Running the app: the listening socket, the signals, and an end that lets callers finish."""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket
import time
from functools import partial
from types import FrameType

import uvicorn

from inflight.core.errors import InflightError
from inflight.engine.client import EngineClient
from inflight.metrics.report import Reporter
from inflight.server.app import create_app
from inflight.server.config import ServerConfig
from inflight.server.connection import Connection, connection_limits
from inflight.server.hang_up import cancel
from inflight.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_NUM_WAITING = 1024  # connections that the system keeps until they are accepted
_FLUSH_S = 5  # for the last bytes to callers who read slowly, after the engine has ended


class CannotListen(InflightError):
    """The address cannot be listened on; the message says why and what to do."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; call it before the model is loaded. Raises ``CannotListen``."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        listener = socket.create_server((host, port), family=family)
        # Connections inherit it. Without, the first token waits for the caller to acknowledge the headers: 40 ms.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        hint = "; is another server running there?" if error.errno == errno.EADDRINUSE else "."
        raise CannotListen(
            f"cannot listen on {host}:{port}: {error.strerror or error}{hint} Choose another with --port or --host."
        ) from error


async def serve(
    client: EngineClient, tokenizer: Tokenizer, config: ServerConfig, reporter: Reporter, listener: socket.socket
) -> None:
    """Serve until SIGTERM or SIGINT; ``client`` and ``listener`` are closed then.

    At the first signal new requests are refused and running ones have ``config.drain_timeout`` seconds to finish; a
    later SIGINT ends it at once.
    """
    app = create_app(client, tokenizer, config, reporter.metrics)
    limits = connection_limits()
    server = _Server(
        uvicorn.Config(
            app,
            http=partial(Connection, config.request_timeout_s, limits.max_connections),  # type: ignore[arg-type]
            backlog=limits.backlog,
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_FLUSH_S,
        ),
        client,
        config.drain_timeout,
    )
    periods = asyncio.create_task(_log_periods(reporter, config.log_interval_s))
    try:
        await server.serve(sockets=[listener])
    finally:
        await cancel(periods)
        await client.close()


class _Server(uvicorn.Server):
    """A server that keeps answering, and says that it is not ready, while it drains."""

    def __init__(self, config: uvicorn.Config, client: EngineClient, drain_timeout_s: float) -> None:
        super().__init__(config)
        self._client = client
        self._drain_timeout_s = drain_timeout_s
        self._loop = asyncio.get_running_loop()
        self._end: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called by uvicorn's signal handlers."""
        self._loop.call_soon_threadsafe(self._on_signal, sig)

    def _on_signal(self, sig: int) -> None:
        if self._end is None:
            logger.info("stopping: running requests have %g s to finish", self._drain_timeout_s)
            self._end = self._loop.create_task(self._drain())
        elif sig == signal.SIGINT:
            logger.info("stopping at once")
            self._end.cancel()
            self.config.timeout_graceful_shutdown = 0
            self.force_exit = self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Called by uvicorn at the start."""
        await super().startup(sockets)
        # uvicorn's backlog is both how many connections the event loop accepts in one round, which must be few where
        # files are, and how many the system keeps waiting, which must be many: beyond it callers lose seconds.
        for one in sockets or ():
            one.listen(_NUM_WAITING)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Called by uvicorn at the end."""
        await super().shutdown(sockets)
        if self.force_exit:  # uvicorn then leaves the app's lifespan open, and its end would be a traceback in the log
            await self.lifespan.shutdown()

    async def _drain(self) -> None:
        try:
            await self._client.drain(self._drain_timeout_s)
            await self._client.close()  # ends what still runs
        finally:
            self.should_exit = True


async def _log_periods(reporter: Reporter, interval_s: float) -> None:
    while True:
        try:
            reporter.log_period(time.monotonic())
        except Exception:
            logger.exception("a period could not be logged")
        await asyncio.sleep(interval_s)
