"""The asyncio face of an engine, wherever the engine runs."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from inflight.core.request import Request, RequestId
from inflight.engine.events import ChoiceDelta, EngineInfo, Health


class EngineClient(Protocol):
    """Many coroutines of one event loop may use a client at once."""

    info: EngineInfo

    def generate(self, request: Request) -> AsyncGenerator[ChoiceDelta, None]:
        """Yield the deltas of all ``request.sampling.n`` choices, interleaved, until each has finished.

        Raises ``Rejected`` before the first delta. Closing the generator early aborts the request. If the engine is
        lost, each unfinished choice ends with ``FinishReason.ERROR`` and its reason.
        """

    def abort(self, request_id: RequestId) -> None:
        """End a request; unknown ids are ignored. Its generator ends with ``FinishReason.ABORT``."""

    def health(self) -> Health:
        """The state of this instant; never blocks."""

    async def drain(self, timeout_s: float) -> None:
        """Refuse new requests and wait until the others have finished, at most ``timeout_s``.

        Those that wait for more to share a batch with need not wait any longer.
        """

    async def close(self) -> None:
        """Stop the engine and abort what still runs; idempotent."""
