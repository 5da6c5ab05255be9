from __future__ import annotations

import asyncio
import gc
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from inflight.core.output import SchedulerStats
from inflight.metrics.delta import MetricsDelta

PATIENCE_S = 60.0  # a test that waits longer has failed; nothing is measured with it


@pytest.fixture
def nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """After the test: no process, no file, no open descriptor more than before."""
    # tmp_path is asked for so that pytest's own folder is made before this one takes its place.
    folder = tempfile.mkdtemp(prefix="left-", dir="/tmp")  # short: the names of sockets are
    monkeypatch.setattr(tempfile, "tempdir", folder)
    gc.collect()
    before = set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else set()
    yield
    gc.collect()
    files = os.listdir(folder)
    shutil.rmtree(folder)
    assert files == []
    assert psutil.Process().children(recursive=True) == []
    if before:
        assert set(os.listdir("/proc/self/fd")) - before == set()


@pytest.fixture
def run(nothing_left: None) -> Callable:
    """Run a coroutine function, which must leave no task behind."""

    def run_main(main) -> None:
        async def outer() -> None:
            await asyncio.wait_for(main(), PATIENCE_S)
            assert asyncio.all_tasks() == {asyncio.current_task()}

        asyncio.run(outer())

    return run_main


class Metrics:
    """Keeps what an engine reported last, and lets a test wait for it to say something."""

    def __init__(self) -> None:
        self.stats: SchedulerStats | None = None
        self.num_output_tokens = 0
        self.num_engines_lost = 0
        self.num_lost = 0
        self.num_lost_aborted = 0
        self._reported = asyncio.Event()

    def __call__(self, delta: MetricsDelta, stats: SchedulerStats) -> None:
        self.num_engines_lost += delta.num_engines_lost
        self.num_lost += delta.num_lost
        self.num_lost_aborted += delta.num_lost_aborted
        self.stats = stats
        self.num_output_tokens += delta.num_output_tokens
        self._reported.set()

    async def until(self, condition: Callable[[SchedulerStats], bool]) -> SchedulerStats:
        while self.stats is None or not condition(self.stats):
            self._reported.clear()
            await self._reported.wait()
        return self.stats


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that tells nobody when it happens."""
    while not condition():
        await asyncio.sleep(0.005)
