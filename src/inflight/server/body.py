"""Reading a request: its body within a limit, strict JSON, then a pydantic model."""

from __future__ import annotations

import asyncio
import time
from typing import Any, TypeVar

import msgspec
from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from inflight.core.errors import Reason, Rejected
from inflight.server.services import services

M = TypeVar("M", bound=BaseModel)

_SHORT_BYTES = 64 * 1024  # parsed in some milliseconds at most
_LINGER_S = 1.0
_LINGER_BYTES = 32 * 1024 * 1024


async def read_model(request: Request, model: type[M]) -> tuple[M, float]:
    """The body as a ``model``, and the moment at which all of it was there (monotonic, in seconds).

    Raises ``Rejected``, or ``HTTPException``: 415 for a body that is not declared as JSON, 408 for one that takes
    longer than ``request_timeout_s`` to arrive.
    """
    # A web page can have its visitor's browser post any other type, and none, to a server on the visitor's machine.
    content_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if content_type != "application/json":
        raise HTTPException(415, f"the body must be declared as application/json, not {content_type[:100]!r}")
    config = services(request).config
    try:
        async with asyncio.timeout(config.request_timeout_s):
            body = await _read(request, config.max_body_bytes)
    except TimeoutError:
        message = f"the body did not arrive within {config.request_timeout_s:g} s"
        raise HTTPException(408, message, {"Connection": "close"}) from None
    arrival_s = time.monotonic()
    if len(body) <= _SHORT_BYTES:
        return parse(body, model), arrival_s
    return await asyncio.to_thread(parse, body, model), arrival_s


def parse(body: bytes, model: type[M]) -> M:
    """``body`` as a ``model``: strict JSON (no NaN, no lone surrogates). Raises ``Rejected``."""
    try:
        content = msgspec.json.decode(body)
    except RecursionError:
        raise Rejected(Reason.INVALID, "the body is nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeError, ValueError) as error:
        raise Rejected(Reason.INVALID, f"the body is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise Rejected(Reason.INVALID, "the body must be a JSON object")
    try:
        return model.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        param = ".".join(str(part) for part in first["loc"])[:100] or None
        message = first["msg"].removeprefix("Value error, ")
        raise Rejected(Reason.INVALID, f"{param}: {message}" if param else message, param) from None


async def _read(request: Request, max_bytes: int) -> bytes:
    declared = request.headers.get("content-length", "0")
    body = bytearray()
    stream = request.stream()
    too_large = declared.isdecimal() and int(declared[:20]) > max_bytes
    while not too_large:
        chunk = await anext(stream, None)
        if chunk is None:
            return bytes(body)
        body += chunk
        too_large = len(body) > max_bytes
    await _discard(request, _LINGER_BYTES)
    raise Rejected(Reason.BODY_TOO_LARGE, f"the body is larger than {max_bytes} bytes")


async def _discard(request: Request, max_bytes: int) -> None:
    """Take the rest of a body that is refused, within bounds.

    Closing a connection with unread data resets it, and most callers would then see the reset and not the answer.
    """
    try:
        async with asyncio.timeout(_LINGER_S):
            while max_bytes > 0:
                message: Any = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                max_bytes -= len(message.get("body", b""))
                if not message.get("more_body", False):
                    return
    except TimeoutError:
        return
