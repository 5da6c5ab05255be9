"""A server with eight KV blocks: what can never fit is refused, all else finishes, and nothing ever stands still."""

from __future__ import annotations

import asyncio

import httpx

from inflight.core.output import FinishReason
from inflight.engine.recorder import Scheduled, Updated, read_step_log
from real.serving import serving

NUM_BLOCKS, BLOCK_SIZE = 8, 16
LIMIT = NUM_BLOCKS * BLOCK_SIZE
LIMITS = ("--max-num-seqs", "4", "--max-num-batched-tokens", "32", "--num-gpu-blocks-override", str(NUM_BLOCKS))


async def complete(http: httpx.AsyncClient, num_prompt_tokens: int, first: int, **fields) -> httpx.Response:
    prompt = [first, *range(1000, 999 + num_prompt_tokens)]
    return await http.post("/v1/completions", json={"prompt": prompt, "temperature": 0, "ignore_eos": True, **fields})


def test_eight_blocks(model_files, tmp_path):
    async def main(server):
        async with server.http() as http:
            refused = await complete(http, 9 * BLOCK_SIZE, 1, max_tokens=1)
            assert refused.status_code == 400
            message = refused.json()["error"]["message"]
            assert str(9 * BLOCK_SIZE) in message
            assert str(LIMIT) in message

            # Five blocks each in the end: more than there are.
            pair = await asyncio.gather(*(complete(http, 30, first, max_tokens=45) for first in (2, 3)))
            assert [answer.json()["usage"]["completion_tokens"] for answer in pair] == [45, 45]

            # Up to the context, beside three that are short.
            long, *short = await asyncio.gather(
                complete(http, 20, 4), *(complete(http, 10, first, max_tokens=6) for first in (5, 6, 7))
            )
            assert long.json()["choices"][0]["finish_reason"] == "length"
            assert long.json()["usage"]["total_tokens"] == LIMIT
            assert [answer.json()["usage"]["completion_tokens"] for answer in short] == [6, 6, 6]
            metrics = await server.idle(http)
            assert metrics["inflight_kv_cache_usage_ratio"] == 0.0

    with serving(tmp_path, limits=LIMITS) as server:
        asyncio.run(main(server))
    _, *log = read_step_log(server.step_log)
    num_preempted = sum(len(line.output.preempted) for line in log if isinstance(line, Scheduled))
    assert num_preempted >= 1
    ends = [event for line in log if isinstance(line, Updated) for event in line.events if event.finish_reason]
    assert len(ends) == 6
    assert all(event.finish_reason is FinishReason.LENGTH for event in ends)
    assert longest_standstill(log) < 2


def longest_standstill(log) -> int:
    """The most steps in a row after which no more KV is stored than before: what was computed, less what was lost."""
    stored: dict = {}
    longest = standing = 0
    for line in log:
        if isinstance(line, Scheduled):
            output = line.output
            lost = sum(stored.pop(seq_id, 0) for seq_id in output.preempted if seq_id not in output.swapped_out)
            standing = 0 if output.num_tokens > lost else standing + 1
            longest = max(longest, standing)
            stored |= {row.seq_id: row.start + len(row.token_ids) for row in output.scheduled}
    return longest
