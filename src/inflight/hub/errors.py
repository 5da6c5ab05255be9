"""Why a model cannot be had."""

from __future__ import annotations

from inflight.core.errors import InflightError


class ModelUnavailable(InflightError):
    """A model cannot be found or fetched; the message says what was tried and what to do."""
