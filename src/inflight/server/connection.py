"""Connections that cannot be held by callers who send nothing, and never more of them than files can be open."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

try:
    import resource
except ImportError:  # not on Windows, where sockets are not counted as files
    resource = None  # type: ignore[assignment]

_MAX_CONNECTIONS = 8192
_BACKLOG = 128
_OTHER_FILES = 32  # of this process, beside its callers' connections
_ACCEPT_ROUNDS = 4  # of the event loop, from accepting a connection until one that was closed for it is gone


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """``backlog``: connections that wait to be accepted, and that the event loop accepts in one round."""

    max_connections: int
    backlog: int


def connection_limits() -> ConnectionLimits:
    """Let this process open as many files as it may, and see how many connections that allows.

    Accepting must never fail for want of a file: the event loop then tries again and again, and logs each time.
    """
    max_files = _raise_max_files()
    backlog = min(_BACKLOG, max_files // 16)
    spare = max_files - _OTHER_FILES - _ACCEPT_ROUNDS * (backlog + 1)
    return ConnectionLimits(max(1, min(_MAX_CONNECTIONS, spare)), max(1, backlog))


def _raise_max_files() -> int:
    enough = 2 * _MAX_CONNECTIONS
    if resource is None:
        return enough
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # some systems refuse more than a limit of their own
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return enough if soft == resource.RLIM_INFINITY else soft


class Connection(H11Protocol):
    """One connection. It is closed if it brings no complete request head for ``request_timeout_s``.

    Beyond ``max_connections`` the one that has waited longest for a head makes room; if all are at work, the new one.
    """

    def __init__(self, request_timeout_s: float, max_connections: int, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self._request_timeout_s = request_timeout_s
        self._max_connections = max_connections
        self._deadline: asyncio.TimerHandle | None = None  # set while the next head is awaited

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See ``asyncio.Protocol``."""
        super().connection_made(transport)
        if len(self.connections) > self._max_connections:
            self._make_room()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """See ``asyncio.Protocol``."""
        self._unwatch()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Called by uvicorn when something has come, and after each response."""
        super().handle_events()
        # Our side is done before the caller's if a response did not need the request's body.
        if self.conn.their_state is h11.IDLE or self.conn.our_state is h11.DONE:
            self._watch()
        else:
            self._unwatch()

    def _make_room(self) -> None:
        waiting = {
            other: other._deadline.when()
            for other in self.connections
            if isinstance(other, Connection) and other._deadline is not None
        }
        victim = min(waiting, key=waiting.__getitem__, default=self)
        self.connections.discard(victim)
        victim._unwatch()
        victim.transport.abort()

    def _watch(self) -> None:
        if self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(self._request_timeout_s, self.transport.close)

    def _unwatch(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
