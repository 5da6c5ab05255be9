"""A server process for tests of signals: ``python -m server.fake_server PORT DRAIN_TIMEOUT_S``, with a fake engine.

Every token takes until the file ``go`` in the working directory exists.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from inflight.metrics.prometheus import PrometheusMetrics
from inflight.metrics.report import Reporter
from inflight.server.config import ServerConfig
from inflight.server.serve import listen, serve
from server.byte_tokenizer import byte_tokenizer
from server.fake_client import FakeClient


async def main(port: int, drain_timeout_s: float) -> None:
    client = FakeClient()
    client.decodes.clear()

    async def watch() -> None:
        while not Path("go").exists():
            await asyncio.sleep(0.01)
        client.decodes.set()

    watcher = asyncio.create_task(watch())
    config = ServerConfig(port=port, drain_timeout=drain_timeout_s)
    listener = listen(config.host, config.port)
    await serve(client, byte_tokenizer(), config, Reporter(PrometheusMetrics()), listener)
    watcher.cancel()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2])))
