"""Request-level batching as its users meet it: a server that waits for a batch, says so, and lets go at its end."""

from __future__ import annotations

import asyncio
import signal

from inflight.engine.recorder import Added, Scheduled, read_step_log
from inflight.schedulers.registry import config_from_log, make_scheduler
from inflight.sim.replay import replay
from real.serving import serving

BODY = {"prompt": "The capital of France is", "temperature": 0, "ignore_eos": True}


def test_a_static_server_waits_for_a_full_batch_and_flushes_when_it_drains(model_files, tmp_path):
    flags = ("--scheduler", "static", "--batch-size", "2", "--fill-timeout-ms", "none")

    async def main(server):
        async with server.http() as http:

            async def ask(max_tokens):
                answer = await http.post("/v1/completions", json=BODY | {"max_tokens": max_tokens})
                return answer.json()["choices"][0]["text"]

            async def waiting(number):
                while (metrics := await server.metrics(http))["inflight_num_seqs_waiting"] != number:
                    await asyncio.sleep(0.02)
                return metrics

            first = asyncio.create_task(ask(3))
            alone = await waiting(1)
            assert alone["inflight_seat_steps_total"] == 0.0  # it waits for ever, and the queue says so
            short, long = await asyncio.gather(first, ask(12))
            assert long.startswith(short)
            metrics = await server.idle(http)
            assert metrics['inflight_wasted_slot_steps_total{cause="straggler"}'] == 9.0
            assert metrics['inflight_wasted_slot_steps_total{cause="empty"}'] == 0.0
            assert metrics['inflight_useful_slot_steps_total{kind="decode"}'] == 2 + 11
            assert metrics["inflight_seat_steps_total"] == 2 * 12
            last = asyncio.create_task(ask(4))
            await waiting(1)
            server.process.send_signal(signal.SIGTERM)
            assert short.startswith((await last)[:3])
        return server.process.wait(60)

    with serving(tmp_path, limits=flags) as server:
        assert asyncio.run(main(server)) == 0
    started, *log = read_step_log(server.step_log)
    scheduler = make_scheduler(
        config_from_log(started.scheduler, started.config),
        started.num_blocks,
        started.block_size,
        started.num_host_blocks,
    )
    decisions = list(replay(log, scheduler))
    assert all(decision.recorded == decision.replayed for decision in decisions)
    assert len(decisions) == 12 + 4


def test_a_dynamic_server_lets_a_batch_go_when_its_window_closes(model_files, tmp_path):
    flags = ("--scheduler", "dynamic", "--max-batch-size", "4", "--max-wait-ms", "300", "--length-bins", "8,64")

    async def main(server):
        async with server.http() as http:
            prompts = ["One", "Two", "Three " * 20]
            calls = [
                http.post("/v1/completions", json=BODY | {"prompt": prompt, "max_tokens": 2}) for prompt in prompts
            ]
            assert [answer.status_code for answer in await asyncio.gather(*calls)] == [200] * 3

    with serving(tmp_path, limits=flags) as server:
        asyncio.run(main(server))
    log = list(read_step_log(server.step_log))
    arrivals_s = {line.request.request_id: line.request.arrival_s for line in log if isinstance(line, Added)}
    batches = [line for line in log if isinstance(line, Scheduled) and line.output.new]
    assert sorted(len(line.output.scheduled) for line in batches) == [1, 2]  # the long prompt is in a bin of its own
    for line in batches:
        oldest_s = min(arrivals_s[row.seq_id[0]] for row in line.output.scheduled)
        assert line.now_s >= oldest_s + 0.3
