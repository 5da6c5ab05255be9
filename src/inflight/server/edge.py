"""The outermost layer: request ids, API keys, and the last resort for exceptions."""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inflight.server.errors import ErrorAnswer, answer_to
from inflight.server.namespace import Namespace

OPEN_PATHS = frozenset({"/health", "/ready", "/ping", "/version", "/metrics"})

_PLAIN_ID = re.compile(r"[\x21-\x7e]{1,128}")


class Edge:
    """An ASGI layer around ``app``.

    Every answer has an ``X-Request-Id``: the caller's own, if it is plain. With ``api_keys`` every path but
    ``OPEN_PATHS`` wants one of them as a bearer token; ``app`` is told its namespace, and never the key. Whatever
    ``app`` raises becomes an answer.
    """

    def __init__(self, app: ASGIApp, api_keys: Sequence[str]) -> None:
        self._app = app
        secret = secrets.token_bytes(32)
        self._callers = [(key.encode(), Namespace(secret, key.encode())) for key in api_keys]
        self._everybody = None if api_keys else Namespace(secret, b"")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection, as ASGI has it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given_id = headers.get("x-request-id", "")
        request_id = given_id if _PLAIN_ID.fullmatch(given_id) else secrets.token_hex(16)
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            found = self._namespace(headers.get("authorization", ""))
            if scope["path"] not in OPEN_PATHS and found is None:
                await _UNAUTHORIZED.response()(scope, receive, send_with_id)
            else:
                scope.setdefault("state", {})["namespace"] = found
                await self._app(scope, receive, send_with_id)
        except ClientDisconnect:
            return
        except Exception as error:
            answer = answer_to(error)
            if started:
                raise  # the server closes the connection: half an answer must not look like a whole one
            await answer.response()(scope, receive, send_with_id)

    def _namespace(self, authorization: str) -> Namespace | None:
        """That of whoever sent this header; ``None`` for somebody without a key where one is needed."""
        if self._everybody is not None:
            return self._everybody
        scheme, _, given = authorization.partition(" ")
        token = given.strip().encode("latin-1")
        # Every key is compared, each in constant time, so that the time taken tells nothing about the keys.
        matches = [found for key, found in self._callers if hmac.compare_digest(token, key)]
        return matches[0] if scheme.lower() == "bearer" and matches else None


_UNAUTHORIZED = ErrorAnswer(
    401,
    "a valid API key is needed, sent as the header Authorization: Bearer KEY",
    "invalid_api_key",
    headers={"WWW-Authenticate": "Bearer"},
)
