"""Every failure as one HTTP answer: a status and ``{"error": {message, type, param, code}}``."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
from fastapi import Request, Response
from starlette.exceptions import HTTPException

from inflight.core.errors import InflightError, Reason, Rejected

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 1.0  # what callers are asked to wait while an engine starts or drains

_MAX_MESSAGE_CHARS = 500  # messages quote what callers sent, which may be long

_STATUS = {
    Reason.INVALID: 400,
    Reason.CONTEXT_LENGTH: 400,
    Reason.MODEL_NOT_FOUND: 404,
    Reason.BODY_TOO_LARGE: 413,
    Reason.QUEUE_FULL: 503,
    Reason.UNAVAILABLE: 503,
}
_CODES = {404: "not_found", 405: "method_not_allowed", 408: "request_timeout"}


class RequestLost(InflightError):
    """A request that had been accepted did not finish: its engine was lost, it failed, or we ended it.

    ``retry_after_s`` is set where waiting may help.
    """

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """What a caller is told about a failure."""

    status: int
    message: str
    code: str
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> bytes:
        """The answer's JSON, with a message of bounded length."""
        message = self.message
        if len(message) > _MAX_MESSAGE_CHARS:
            message = message[: _MAX_MESSAGE_CHARS - 1] + "…"
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": message, "type": kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})

    def response(self) -> Response:
        """The answer as a response."""
        return Response(self.body(), self.status, dict(self.headers), "application/json")


def answer_to(error: Exception) -> ErrorAnswer:
    """What to tell about ``error``; one that nobody foresaw is logged, and nothing of it is told."""
    match error:
        case Rejected():
            return _answer_rejected(error)
        case RecursionError():
            return ErrorAnswer(400, "the request is nested too deeply", Reason.INVALID.value)
        case RequestLost():
            return ErrorAnswer(503, str(error), "request_lost", None, retry_after(error.retry_after_s))
        case HTTPException():
            code = _CODES.get(error.status_code, "http_error")
            return ErrorAnswer(error.status_code, str(error.detail), code, None, dict(error.headers or {}))
    logger.error("a request failed in a way that was not foreseen", exc_info=error)
    return ErrorAnswer(500, "the server failed to handle this request; the cause is in its log", "internal_error")


def retry_after(seconds: float | None) -> dict[str, str]:
    """The header that asks a caller to wait so long, in whole seconds from 1; no header for None."""
    return {} if seconds is None else {"Retry-After": str(max(1, math.ceil(seconds)))}


async def handle(request: Request, error: Exception) -> Response:
    """``answer_to`` as an exception handler."""
    return answer_to(error).response()


def _answer_rejected(error: Rejected) -> ErrorAnswer:
    status = _STATUS[error.reason]
    headers = retry_after(error.retry_after_s)
    if status == 413:
        headers["Connection"] = "close"  # what is left of the body is not read
    return ErrorAnswer(status, error.message, error.reason.value, error.param, headers)
