"""What a figure depends on beside the settings: versions and the processor."""

from __future__ import annotations

import platform
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from inflight import __version__
from inflight.bench.process import num_cpus
from inflight.native import NativeUnavailable, isa


def versions() -> dict[str, str | int]:
    """Return the versions, the processor's name and the instruction set that the kernels use."""
    try:
        kernels = isa().name
    except NativeUnavailable as error:
        kernels = f"none: {error}"
    return {
        "inflight": __version__,
        "torch": version("torch"),
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpu": cpu_name(),
        "num_cpus": num_cpus(),
        "kernels": kernels,
    }


def cpu_name() -> str:
    """The processor's name, as far as the system knows it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
