"""C++ kernels for CPUs, compiled from ``csrc/`` when the package is built; without a compiler the package lacks them.

``isa()`` is the instruction set in use. The environment variable ``INFLIGHT_MAX_CPU_ISA`` (``avx512_vnni``, ``avx2``,
``portable`` or ``none``) keeps it from using more than that: for tests, and for comparing.
"""

from __future__ import annotations

import os

import torch  # noqa: F401  (first: it brings the OpenMP runtime, whose threads the kernels share)

_missing: str | None = None
try:
    import inflight.native._kernels as kernels
except ImportError as error:
    kernels = None  # type: ignore[assignment]
    _missing = f"the native kernels were not built ({error}); reinstall with a C++17 compiler and OpenMP"

__all__ = ["MAX_ISA_VARIABLE", "NativeUnavailable", "isa", "kernels"]

MAX_ISA_VARIABLE = "INFLIGHT_MAX_CPU_ISA"


class NativeUnavailable(Exception):
    """There are no native kernels here; the message says why."""


def isa() -> kernels.Isa:
    """Return the best instruction set that the processor has, within ``INFLIGHT_MAX_CPU_ISA``.

    Raises ``NativeUnavailable``, or ``ValueError`` for a variable that names none.
    """
    limit = os.environ.get(MAX_ISA_VARIABLE) or None
    if limit == "none":
        raise NativeUnavailable(f"the native kernels are off: {MAX_ISA_VARIABLE}=none")
    if _missing is not None:
        raise NativeUnavailable(_missing)
    try:
        return kernels.choose_isa(limit)
    except ValueError as error:
        raise ValueError(f"{MAX_ISA_VARIABLE}: {error}, none") from None
