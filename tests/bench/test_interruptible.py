"""Ctrl-C ends a coroutine, and a second one while it ends is as quiet."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal

import pytest

from inflight.bench.interruptible import run_interruptible


@pytest.fixture(autouse=True)
def usual_handler():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


async def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(60)


def test_what_ends_by_itself_gives_its_result_and_leaves_the_handler_as_it_was() -> None:
    assert run_interruptible(asyncio.sleep(0, "done")) == "done"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_work_may_end_itself_once_it_is_cancelled() -> None:
    async def work() -> str:
        try:
            await press()
        except asyncio.CancelledError:
            asyncio.current_task().uncancel()
        return "so far"

    assert run_interruptible(work()) == "so far"


def test_an_error_passes_through() -> None:
    async def fails() -> None:
        raise ValueError("as written")

    with pytest.raises(ValueError, match="as written"):
        run_interruptible(fails())


@pytest.mark.parametrize("again", [0, 1, 3])
def test_ctrl_c_is_quiet_however_often_it_is_pressed(again: int, caplog: pytest.LogCaptureFixture) -> None:
    async def caller() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            for _ in range(again):
                os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(0.01)

    async def work() -> None:
        callers = [asyncio.create_task(caller()) for _ in range(3)]
        try:
            await press()
        finally:
            for task in callers:
                task.cancel()
            await asyncio.gather(*callers, return_exceptions=True)

    with caplog.at_level(logging.DEBUG, "asyncio"):
        with pytest.raises(KeyboardInterrupt):
            run_interruptible(work())
        gc.collect()  # an exception that nobody has asked for is told when its task goes
    assert not [record for record in caplog.records if record.levelno > logging.DEBUG]
