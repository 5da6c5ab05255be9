"""A small server is driven full, preempts, refuses and loses its engine; every rule is held against what it says."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import psutil

from inflight.metrics.alarm import HIGH
from metrics.alerts import Scrape, is_true, rules, scrape, selectors
from real.serving import Server, serving
from tiny_llama import write_tiny_llama

# Ten blocks of 16 tokens: two sequences that grow to 96 tokens do not fit, and one of them has room in the host tier.
LIMITS = ("--max-num-seqs", "4", "--max-num-batched-tokens", "64", "--max-model-len", "112")
MEMORY = ("--num-gpu-blocks-override", "10", "--admission", "none", "--preemption-mode", "swap")
BYTES_PER_BLOCK = 2 * 2 * 2 * 8 * 16 * 4  # keys and values, layers, heads, head_dim, tokens, float32
FLAGS = ("--dtype", "float32", "--swap-space-bytes", str(3 * BYTES_PER_BLOCK), "--max-num-waiting-seqs", "2")
BODY = {"prompt": list(range(8)), "max_tokens": 96, "ignore_eos": True, "temperature": 0.0}


async def ask(http: httpx.AsyncClient, number: int) -> int:
    return (await http.post("/v1/completions", json=BODY | {"prompt": [number] * 12})).status_code


async def scraped(http: httpx.AsyncClient) -> Scrape:
    return scrape((await http.get("/metrics")).text)


async def drive(server: Server) -> tuple[Scrape, list[Scrape], Scrape, list[int]]:
    """The scrapes before, during and after; and how the calls ended."""
    during = []
    async with server.http() as http:
        await ask(http, 1)
        before = await scraped(http)
        gauges = [
            rule["expr"] for rule in rules().values() if not any(one.is_increase for one in selectors(rule["expr"]))
        ]
        statuses = []
        while not all(any(is_true(expr, before, one) for one in during) for expr in gauges):
            calls = [asyncio.create_task(ask(http, number)) for number in range(1, 9)]
            while not all(call.done() for call in calls):
                during.append(await scraped(http))
            statuses += [call.result() for call in calls]
        quiet = await server.idle(http)
        assert quiet["inflight_kv_cache_usage_ratio"] == quiet["inflight_kv_cache_fragmentation_ratio"] == 0
        assert quiet["inflight_kv_host_usage_ratio"] == quiet["inflight_kv_cache_shared_blocks"] == 0
        (engine,) = psutil.Process(server.process.pid).children()
        engine.kill()
        while not (after := await scraped(http))["inflight_engine_losses_total", frozenset()]:
            await asyncio.sleep(0.02)
        return before, during, after, statuses


def test_each_rule_is_true_of_a_server_in_trouble_and_false_of_a_quiet_one(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    write_tiny_llama(tmp_path / "model")
    flags = (*MEMORY, *FLAGS, "--slo", "e2el:0.000001", "--", str(tmp_path / "model"))
    with serving(tmp_path, *flags, limits=LIMITS) as server:
        before, during, after, statuses = asyncio.run(asyncio.wait_for(drive(server), 120))
    assert set(statuses) == {200, 503}
    for name, rule in rules().items():
        seen = [is_true(rule["expr"], before, one) for one in (*during, after)]
        assert any(seen), name
        assert not is_true(rule["expr"], after, after), name
    usage = [one["inflight_kv_cache_usage_ratio", frozenset()] for one in during]
    assert max(usage) >= HIGH
    assert after["inflight_kv_cache_usage_ratio", frozenset()] == 0
    log = (tmp_path / "stderr.txt").read_text()
    assert "the KV cache is nearly full: " in log
    assert "What helps: more memory" in log
    assert log.count("the KV cache is nearly full") - log.count("the KV cache has room again") in (0, 1)
