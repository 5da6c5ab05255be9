"""What can go wrong while a model is loaded; both are for the person who starts the engine."""

from __future__ import annotations

from inflight.core.errors import InflightError


class UnsupportedModel(InflightError):
    """The checkpoint asks for something that this runtime does not do; the message names what it does."""


class InsufficientMemory(InflightError):
    """Weights and KV do not fit into the memory that is available; the message holds the numbers."""
