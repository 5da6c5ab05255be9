"""A coroutine that Ctrl-C ends as it would end any other program: quietly, however often it is pressed."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_interruptible(work: Coroutine[Any, Any, T]) -> T:
    """Run it in an event loop, on the main thread. Every Ctrl-C cancels it.

    ``asyncio.run`` raises the second one wherever the loop is at that moment, and then complains about the task it hit.
    Raises ``KeyboardInterrupt`` if the work was cancelled, rather than ended itself once it was.
    """

    async def cancellable() -> T:
        task = asyncio.create_task(work)
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, task.cancel)  # until the loop is closed
        return await task

    try:
        return asyncio.run(cancellable())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
