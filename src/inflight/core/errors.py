"""The exceptions of inflight.

InflightError
├── Rejected            the caller's fault, or our fullness: the request was never started
├── StepFailed          an executor could not run a step: its rows recompute, or fail alone
└── InvariantViolation  our own bug: stop admitting and report unhealthy
"""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Why a request was refused; the server maps each to one HTTP status."""

    INVALID = "invalid_request"  # 400
    CONTEXT_LENGTH = "context_length_exceeded"  # 400
    MODEL_NOT_FOUND = "model_not_found"  # 404
    BODY_TOO_LARGE = "body_too_large"  # 413
    QUEUE_FULL = "queue_full"  # 503, with Retry-After
    UNAVAILABLE = "engine_unavailable"  # 503: starting, draining or restarting


class InflightError(Exception):
    """The root of every exception that inflight raises on purpose."""


class Rejected(InflightError):
    """A request that was refused before it started.

    ``param`` names the offending field, if there is one. ``retry_after_s`` is set where waiting may help.
    """

    def __init__(
        self, reason: Reason, message: str, param: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s


class StepFailed(InflightError):
    """One forward pass failed as a whole; nothing that it sampled may be used."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvariantViolation(InflightError):
    """A law of the bookkeeping does not hold: a bug of ours, never of a caller."""
