"""What a process has used: processor time, and memory at its peak."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import psutil


def cpu_s(pid: int | None = None) -> float:
    """Seconds of processor time, of this process or of another; its children are not counted."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def num_cpus() -> int:
    """Processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def forget_peak(pid: int | None = None) -> None:
    """Have ``peak_bytes`` start anew, where the system can (Linux); else it goes on from the start of the process."""
    with suppress(OSError):
        Path(f"/proc/{pid or 'self'}/clear_refs").write_text("5")


def peak_bytes(pid: int | None = None) -> int | None:
    """The most memory that was resident at once, files that are mapped included; None where the system does not say."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid or 'self'}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None
