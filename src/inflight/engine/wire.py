"""The messages between an engine's process and its parent, as msgpack.

One ``Step`` per scheduling step carries everything that the step gave, so that the parent's event loop is entered
once per step and not once per token.
"""

from __future__ import annotations

import msgspec

from inflight.core.errors import Reason, Rejected
from inflight.core.output import SchedulerStats
from inflight.core.request import Request, RequestId
from inflight.engine.events import ChoiceDelta, EngineInfo
from inflight.metrics.delta import MetricsDelta


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The base of every message; the class's name goes along as the tag."""


class Add(Message, frozen=True):
    """Start a request. It is read on its own, so that one that cannot be read is refused by its id."""

    request_id: RequestId
    body: msgspec.Raw  # the Request, see encode_add and read_request


class Abort(Message, frozen=True):
    """Give a request up; answered by its id in the ``aborted`` of a later ``Step``, known or not."""

    request_id: RequestId


class Flush(Message, frozen=True):
    """Nobody else comes for now: what waits for others need not wait any more."""


class Stop(Message, frozen=True):
    """Close the engine and leave the process."""


class Ready(Message, frozen=True):
    """The engine is built and takes requests."""

    info: EngineInfo


class Failed(Message, frozen=True):
    """The last message: the engine could not be built, or cannot go on."""

    reason: str


class Refused(Message, frozen=True):
    """A request that the engine rejected; nothing else comes for its id."""

    request_id: RequestId
    reason: Reason
    message: str
    param: str | None
    retry_after_s: float | None


class Step(Message, frozen=True):
    """What one turn of the loop gave. Nothing comes later for the requests in ``aborted``: their ids are free."""

    deltas: tuple[ChoiceDelta, ...]
    aborted: tuple[RequestId, ...]
    metrics: MetricsDelta
    stats: SchedulerStats


class Heartbeat(Message, frozen=True):
    """The loop is alive and has nothing to do."""


ToEngine = Add | Abort | Flush | Stop
FromEngine = Ready | Failed | Refused | Step | Heartbeat

_encoder = msgspec.msgpack.Encoder()
_to_engine: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
_from_engine: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)
_request: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)


def encode(message: Message) -> bytes:
    """The bytes of a message."""
    return _encoder.encode(message)


def encode_add(request: Request) -> bytes:
    """The bytes of the ``Add`` of a request.

    Raises ``Rejected`` for values that no message can hold: lone surrogates, integers beyond 64 bits.
    """
    try:
        return _encoder.encode(Add(request.request_id, msgspec.Raw(_encoder.encode(request))))
    except (TypeError, ValueError, OverflowError) as error:
        raise Rejected(Reason.INVALID, f"the request holds a value that cannot be sent: {error}") from error


def read_request(add: Add) -> Request:
    """The request of an ``Add``. Raises ``Rejected`` if a field has the wrong type or an illegal value."""
    try:
        return _request.decode(add.body)
    except msgspec.ValidationError as error:
        raise Rejected(Reason.INVALID, f"the request cannot be read: {error}") from error


def decode_to_engine(data: bytes) -> ToEngine:
    """Read a message of the parent. Raises ``msgspec.DecodeError`` for anything else."""
    return _to_engine.decode(data)


def decode_from_engine(data: bytes) -> FromEngine:
    """Read a message of the engine. Raises ``msgspec.DecodeError`` for anything else."""
    return _from_engine.decode(data)
