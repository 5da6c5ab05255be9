"""Callers who hang up while they wait."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

T = TypeVar("T")


async def hung_up(receive: Receive) -> None:
    """Return once the caller has hung up. The whole body must have been read, or be of no interest."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_hung_up(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, which is cancelled if the caller hangs up: then ``ClientDisconnect`` is raised."""
    tasks: tuple[asyncio.Task[T], asyncio.Task[None]] = (
        asyncio.create_task(work),
        asyncio.create_task(hung_up(receive)),
    )
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            raise ClientDisconnect
        return tasks[0].result()
    finally:
        await cancel(*tasks)


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they have gone."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
