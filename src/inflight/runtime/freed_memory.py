"""Memory that was freed, and that the C library keeps for later: whether it does depends on the order of frees."""

from __future__ import annotations

import ctypes


def give_back() -> None:
    """Return whole free pages to the system, where the C library can: glibc's ``malloc_trim``."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
