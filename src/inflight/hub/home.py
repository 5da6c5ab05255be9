"""Paths as people write them."""

from __future__ import annotations

from pathlib import Path

from inflight.hub.errors import ModelUnavailable


def expand_home(path: str) -> Path:
    """The path with a leading ``~`` or ``~user`` replaced. Raises ``ModelUnavailable`` if that home is not known."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ModelUnavailable(f"{path!r} cannot be looked for: {error}") from error
