"""From one message per step to one stream of deltas per caller."""

from __future__ import annotations

import asyncio
from collections import deque

from inflight.core.errors import Reason, Rejected
from inflight.core.output import FinishReason
from inflight.core.request import RequestId
from inflight.engine.events import ChoiceDelta
from inflight.engine.wire import Refused, Step


class DeltaStream:
    """What one request has been given and its one reader has not taken yet.

    Ends when each choice has had its last delta; what comes later for a choice is ignored.
    """

    def __init__(self, request_id: RequestId, num_choices: int, max_buffered_deltas: int) -> None:
        self.request_id = request_id
        self._unfinished = set(range(num_choices))
        self._max_buffered_deltas = max_buffered_deltas
        self._buffer: deque[ChoiceDelta] = deque()
        self._changed = asyncio.Event()
        self._refused: Rejected | None = None

    @property
    def ended(self) -> bool:
        """True once nothing more will be added."""
        return not self._unfinished

    def push(self, delta: ChoiceDelta) -> bool:
        """Add what a step gave. False, and nothing is added, if the reader is too far behind."""
        if delta.seq_id[1] not in self._unfinished:
            return True
        if len(self._buffer) >= self._max_buffered_deltas:
            return False
        self._append(delta)
        return True

    def end(self, finish_reason: FinishReason, error: str | None = None) -> None:
        """Finish every choice that has not finished."""
        for choice in sorted(self._unfinished):
            self._append(ChoiceDelta((self.request_id, choice), "", (), finish_reason, error=error))

    def refuse(self, rejected: Rejected) -> None:
        """End the stream with an exception for its reader."""
        self._refused = rejected
        self._unfinished.clear()
        self._changed.set()

    async def next(self) -> ChoiceDelta | None:
        """The oldest delta, once there is one; None at the end. Raises ``Rejected`` if the request was refused."""
        while not self._buffer:
            if self._refused is not None:
                raise self._refused
            if self.ended:
                return None
            self._changed.clear()
            await self._changed.wait()
        return self._buffer.popleft()

    def _append(self, delta: ChoiceDelta) -> None:
        self._buffer.append(delta)
        if delta.finish_reason is not None:
            self._unfinished.discard(delta.seq_id[1])
        self._changed.set()


class StreamTable:
    """The streams of the requests that are in flight in one engine.

    The id of a request that was given up stays taken until the engine has let go of it: until then deltas may still
    come for it, which must not reach another request of the same name.
    """

    def __init__(self, max_buffered_deltas: int) -> None:
        self._max_buffered_deltas = max_buffered_deltas  # per choice
        self._streams: dict[RequestId, DeltaStream] = {}
        self._given_up: set[RequestId] = set()

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def num_given_up(self) -> int:
        """Requests that were given up and that the engine has not let go of."""
        return len(self._given_up)

    def get(self, request_id: RequestId) -> DeltaStream | None:
        """The stream of a request in flight."""
        return self._streams.get(request_id)

    def open(self, request_id: RequestId, num_choices: int) -> DeltaStream:
        """A new stream. Raises ``Rejected`` while the id is taken."""
        if request_id in self._streams or request_id in self._given_up:
            raise Rejected(Reason.INVALID, f"request_id {request_id!r} is in use", "request_id")
        stream = DeltaStream(request_id, num_choices, self._max_buffered_deltas * num_choices)
        self._streams[request_id] = stream
        return stream

    def give_up(self, stream: DeltaStream, finish_reason: FinishReason, error: str | None = None) -> None:
        """End a stream in flight before the engine has; the engine must be told."""
        stream.end(finish_reason, error)
        del self._streams[stream.request_id]
        self._given_up.add(stream.request_id)

    def take(self, step: Step) -> list[DeltaStream]:
        """Hand out what a step gave; the streams whose readers are too far behind for it."""
        behind = {}
        for delta in step.deltas:
            stream = self._streams.get(delta.seq_id[0])
            if stream is None:
                continue  # given up, and the engine did not know yet
            if not stream.push(delta):
                behind[stream.request_id] = stream
            elif stream.ended:
                del self._streams[stream.request_id]
        self._given_up.difference_update(step.aborted)
        return list(behind.values())

    def refuse(self, refused: Refused) -> None:
        """End the stream of a request that the engine rejected."""
        if (stream := self._streams.pop(refused.request_id, None)) is not None:
            stream.refuse(Rejected(refused.reason, refused.message, refused.param, refused.retry_after_s))

    def end_all(self, finish_reason: FinishReason, error: str | None = None) -> None:
        """End every stream, because the engine is gone, and with it whatever held an id."""
        for stream in self._streams.values():
            stream.end(finish_reason, error)
        self._streams.clear()
        self._given_up.clear()
