"""``inflight serve``: the HTTP server."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import shlex
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from inflight import __version__, config
from inflight.assemble import engine_factory
from inflight.engine.events import EngineInfo
from inflight.engine.loop import EngineFactory
from inflight.engine.process import ProcessClient, ProcessConfig
from inflight.hub.resolve import resolve
from inflight.metrics.prometheus import PrometheusMetrics
from inflight.metrics.report import Reporter
from inflight.metrics.slo import Slo
from inflight.server.config import ServerConfig
from inflight.server.serve import listen, serve
from inflight.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add what this command takes."""
    config.add_flags(parser, config.EngineConfig, positional=("model",))
    config.add_flags(parser, ServerConfig)
    config.add_flags(parser, ProcessConfig)


def run(args: argparse.Namespace) -> int:
    """Run the command until the server has been told to stop."""
    engine_config = config.from_args(config.EngineConfig, args)
    server_config = config.from_args(ServerConfig, args)
    process_config = config.from_args(ProcessConfig, args)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with listen(server_config.host, server_config.port) as listener:
        files = resolve(engine_config.model)
        tokenizer = Tokenizer.load(files.path)
        factory = engine_factory(engine_config, files, server_config.log_prompts)
        asyncio.run(run_server(factory, process_config, tokenizer, server_config, listener))
    return 0


async def run_server(
    factory: EngineFactory,
    process_config: ProcessConfig,
    tokenizer: Tokenizer,
    server_config: ServerConfig,
    listener: socket.socket,
) -> None:
    """Start an engine and serve until SIGTERM or SIGINT, which may come while it starts."""
    metrics = PrometheusMetrics(slo=Slo.parse(server_config.slo))
    reporter = Reporter(metrics, tokenizer.decode if server_config.log_prompts else None)
    starting = asyncio.create_task(ProcessClient.start(factory, process_config, reporter))
    with _signals_cancel(starting):
        await asyncio.wait([starting])
        if starting.cancelled():
            logger.info("stopped before the engine was ready")
            return
        client = starting.result()
        print(banner(client.info, server_config, listener.getsockname()[1]), flush=True)
        await serve(client, tokenizer, server_config, reporter, listener)


@contextmanager
def _signals_cancel(task: asyncio.Task[ProcessClient]) -> Iterator[None]:
    """Have SIGTERM and SIGINT cancel ``task``; the server replaces the handlers while it serves."""
    loop = asyncio.get_running_loop()

    def on_signal(number: int) -> None:
        if not task.cancel():
            signal.raise_signal(number)  # it has just ended: for the server's handler, which is about to be installed

    def handle(number: int, _: FrameType | None) -> None:
        loop.call_soon_threadsafe(on_signal, number)

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def banner(info: EngineInfo, config: ServerConfig, port: int) -> str:
    """What is printed when the server is ready: what runs, its limits and why they are so, and how to try it."""
    host = f"[{config.host}]" if ":" in config.host else config.host
    address = f"http://{host}:{port}"
    name = (*config.served_model_name, info.model_name)[0]
    body = json.dumps({"model": name, "messages": [{"role": "user", "content": "Say hello."}]})
    key = " -H 'Authorization: Bearer YOUR_KEY'" if config.api_key else ""
    return "\n".join(
        (
            f"inflight {__version__} serves {name}",
            f"  model    {info.model_name}, {info.num_parameters / 1e6:.1f} million parameters, {info.weight_format}",
            f"  device   {info.device}, {info.num_threads} threads",
            f"  memory   {info.num_blocks} KV blocks of {info.block_size} tokens, {info.bytes_per_block} bytes each",
            f"  batching {info.scheduler}",
            f"  limits   max_model_len {info.max_model_len}, max_num_seqs {info.max_num_seqs}"
            + (f", max_num_batched_tokens {info.max_num_batched_tokens}" if info.max_num_batched_tokens else ""),
            *(f"           {note}" for note in info.notes),
            f"  address  {address}",
            f"  try      curl {address}/v1/chat/completions{key} -H 'Content-Type: application/json' "
            f"-d {shlex.quote(body)}",
        )
    )
