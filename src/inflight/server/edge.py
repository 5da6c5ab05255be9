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

OPEN_PATHS = frozenset({"/health", "/ready", "/ping", "/version", "/metrics"})

_PLAIN_ID = re.compile(r"[\x21-\x7e]{1,128}")


class Edge:
    """An ASGI layer around ``app``.

    Every answer has an ``X-Request-Id``: the caller's own, if it is plain. With ``api_keys`` every path but
    ``OPEN_PATHS`` wants one of them as a bearer token. Whatever ``app`` raises becomes an answer.
    """

    def __init__(self, app: ASGIApp, api_keys: Sequence[str]) -> None:
        self._app = app
        self._api_keys = [key.encode() for key in api_keys]

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
            if scope["path"] not in OPEN_PATHS and not self._allows(headers.get("authorization", "")):
                await _UNAUTHORIZED.response()(scope, receive, send_with_id)
            else:
                await self._app(scope, receive, send_with_id)
        except ClientDisconnect:
            return
        except Exception as error:
            answer = answer_to(error)
            if started:
                raise  # the server closes the connection: half an answer must not look like a whole one
            await answer.response()(scope, receive, send_with_id)

    def _allows(self, authorization: str) -> bool:
        if not self._api_keys:
            return True
        scheme, _, given = authorization.partition(" ")
        token = given.strip().encode("latin-1")
        # Every key is compared, each in constant time, so that the time taken tells nothing about the keys.
        matches = [hmac.compare_digest(token, key) for key in self._api_keys]
        return scheme.lower() == "bearer" and any(matches)


_UNAUTHORIZED = ErrorAnswer(
    401,
    "a valid API key is needed, sent as the header Authorization: Bearer KEY",
    "invalid_api_key",
    headers={"WWW-Authenticate": "Bearer"},
)
