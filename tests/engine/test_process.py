"""A real engine process that stays well: streams, aborts, slow readers, drain, close."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from functools import partial
from pathlib import Path

import psutil
import pytest

from engine.conftest import Metrics
from engine.process_fakes import MAX_MODEL_LEN, MAX_NUM_SEQS, VOCAB_SIZE, build, quick, request
from fakes import unbatched
from inflight.core.errors import Reason, Rejected
from inflight.core.output import FinishReason
from inflight.core.request import Request
from inflight.engine.client import EngineClient
from inflight.engine.events import ChoiceDelta, State
from inflight.engine.process import ProcessClient, ProcessConfig

CONFIG = ProcessConfig()
ENDLESS = 40_000


async def collect(client: EngineClient, one: Request) -> list[ChoiceDelta]:
    return [delta async for delta in client.generate(one)]


def tokens_of(deltas: list[ChoiceDelta], choice: int = 0) -> list[int]:
    return [token.token_id for delta in deltas if delta.seq_id[1] == choice for token in delta.tokens]


def reference(one: Request, choice: int = 0) -> list[int]:
    return unbatched(one, choice, MAX_MODEL_LEN, VOCAB_SIZE)


def test_many_streams_arrive_complete_and_in_order(run) -> None:
    async def main() -> None:
        metrics = Metrics()
        client = await ProcessClient.start(quick, CONFIG, metrics)
        asked = [
            request(f"r{i}", prompt=(0, i % VOCAB_SIZE, i // VOCAB_SIZE), max_tokens=1 + i % 40, n=1 + i % 3)
            for i in range(200)
        ]
        answers = await asyncio.gather(*(collect(client, one) for one in asked))
        for one, deltas in zip(asked, answers, strict=True):
            for choice in range(one.sampling.n):
                mine = [delta for delta in deltas if delta.seq_id == (one.request_id, choice)]
                assert tokens_of(mine, choice) == reference(one, choice)
                assert "".join(delta.text for delta in mine) == "".join(map(str, reference(one, choice)))
                assert [delta.finish_reason for delta in mine[:-1]] == [None] * (len(mine) - 1)
                assert mine[-1].finish_reason is FinishReason.LENGTH
        stats = await metrics.until(lambda stats: stats.finished == len(asked))
        assert (stats.received, stats.live, stats.num_free_blocks) == (len(asked), 0, stats.num_blocks)
        assert metrics.num_output_tokens == sum(one.sampling.max_tokens * one.sampling.n for one in asked)
        await client.close()

    run(main)


def test_a_refused_request_raises_before_its_first_delta(run) -> None:
    async def main() -> None:
        client = await ProcessClient.start(quick, CONFIG, Metrics())
        with pytest.raises(Rejected) as no:
            await collect(client, request("long", max_tokens=MAX_MODEL_LEN))
        assert no.value.reason is Reason.CONTEXT_LENGTH
        with pytest.raises(Rejected) as no:
            await collect(client, request("surrogate", stop="\ud800"))
        assert no.value.reason is Reason.INVALID
        with pytest.raises(Rejected) as no:
            await collect(client, request("text", prompt=("0",)))
        assert no.value.reason is Reason.INVALID
        good = request("good")
        assert tokens_of(await collect(client, good)) == reference(good)
        await client.close()

    run(main)


def test_whoever_hangs_up_leaves_nothing_behind_in_any_phase(run) -> None:
    async def main() -> None:
        metrics = Metrics()
        client = await ProcessClient.start(build, CONFIG, metrics)

        prefill = asyncio.create_task(collect(client, request("prefill", prompt=(0,) * ENDLESS)))
        await metrics.until(lambda stats: stats.num_running_seqs == 1)
        prefill.cancel()
        await metrics.until(lambda stats: stats.aborted == 1 and stats.live == 0)
        assert metrics.num_output_tokens == 0

        decoding = [client.generate(request(f"d{i}", max_tokens=ENDLESS)) for i in range(MAX_NUM_SEQS)]
        for stream in decoding:
            await anext(stream)
        waiting = asyncio.create_task(collect(client, request("waiting")))
        await metrics.until(lambda stats: stats.num_waiting_seqs == 1)
        waiting.cancel()
        await metrics.until(lambda stats: stats.aborted == 2 and stats.num_waiting_seqs == 0)

        await decoding[0].aclose()
        await metrics.until(lambda stats: stats.aborted == 3 and stats.live == 3)
        client.abort("d1")  # by another than its reader, who sees how it ended
        client.abort("unknown")
        rest = [delta async for delta in decoding[1]]
        assert rest[-1].finish_reason is FinishReason.ABORT
        await metrics.until(lambda stats: stats.aborted == 4 and stats.live == 2)
        del decoding[2:], stream  # and without a word
        gc.collect()
        stats = await metrics.until(lambda stats: stats.aborted == 6 and stats.live == 0)
        assert stats.num_free_blocks == stats.num_blocks
        assert stats.received == 6

        good = request("good")
        assert tokens_of(await collect(client, good)) == reference(good)
        await client.close()

    run(main)


def test_an_id_used_again_gets_nothing_of_its_predecessor(run) -> None:
    async def main() -> None:
        client = await ProcessClient.start(build, CONFIG, Metrics())
        for i in range(20):
            first = client.generate(request("same", prompt=(0, 1, i % VOCAB_SIZE), max_tokens=ENDLESS))
            await anext(first)
            with pytest.raises(Rejected, match="in use"):
                await collect(client, request("same"))
            await first.aclose()
            second = request("same", prompt=(0, 2, i % VOCAB_SIZE), max_tokens=5)
            while True:
                try:
                    deltas = await collect(client, second)
                    break
                except Rejected:  # the engine has not answered the abort yet
                    await asyncio.sleep(0)
            assert tokens_of(deltas) == reference(second)
        await client.close()

    run(main)


def test_a_slow_reader_is_ended_and_the_others_are_not(run) -> None:
    async def main() -> None:
        metrics = Metrics()
        client = await ProcessClient.start(build, ProcessConfig(max_buffered_deltas=8), metrics)
        slow = client.generate(request("slow", max_tokens=ENDLESS))
        got = [await anext(slow)]
        others = [request(f"other{i}", max_tokens=300) for i in range(3)]
        answers = [asyncio.create_task(collect(client, one)) for one in others]
        await metrics.until(lambda stats: stats.aborted == 1)
        for one, answer in zip(others, answers, strict=True):
            assert tokens_of(await answer) == reference(one)
        got += [delta async for delta in slow]
        assert got[-1].finish_reason is FinishReason.ERROR
        assert "too slowly" in got[-1].error
        assert len(got) == 1 + 8 + 1
        assert tokens_of(got) == reference(request("slow", max_tokens=9))
        await client.close()

    run(main)


def test_a_parent_that_was_busy_does_not_take_its_readers_for_slow(run) -> None:
    async def main() -> None:
        client = await ProcessClient.start(quick, ProcessConfig(max_buffered_deltas=1), Metrics())
        one = request("one", max_tokens=500)
        stream = client.generate(one)
        deltas = [await anext(stream)]
        time.sleep(0.2)  # the messages of many steps wait
        deltas += [delta async for delta in stream]
        assert tokens_of(deltas) == reference(one)
        await client.close()

    run(main)


def test_signals_of_the_terminal_leave_the_decision_to_the_parent(run) -> None:
    async def main() -> None:
        client = await ProcessClient.start(build, CONFIG, Metrics())
        (engine,) = psutil.Process().children()
        one = request("one", max_tokens=50)
        stream = client.generate(one)
        deltas = [await anext(stream)]
        os.kill(engine.pid, signal.SIGINT)
        os.kill(engine.pid, signal.SIGTERM)
        deltas += [delta async for delta in stream]
        assert tokens_of(deltas) == reference(one)
        assert client.health().state is State.READY
        await client.close()

    run(main)


def test_drain_finishes_what_runs_and_takes_nothing_new(run) -> None:
    async def main() -> None:
        client = await ProcessClient.start(build, CONFIG, Metrics())
        one = request("one", max_tokens=100)
        stream = client.generate(one)
        deltas = [await anext(stream)]
        draining = asyncio.create_task(client.drain(60.0))
        await asyncio.sleep(0)
        assert client.health().state is State.DRAINING
        with pytest.raises(Rejected) as no:
            await collect(client, request("late"))
        assert no.value.reason is Reason.UNAVAILABLE
        assert no.value.retry_after_s is not None
        deltas += [delta async for delta in stream]
        await draining
        assert tokens_of(deltas) == reference(one)
        await client.close()

    run(main)


def test_drain_gives_up_in_time_and_close_aborts_the_rest(run) -> None:
    async def main() -> None:
        client = await ProcessClient.start(build, CONFIG, Metrics())
        stream = client.generate(request("endless", max_tokens=ENDLESS))
        await anext(stream)
        await client.drain(0.05)
        await client.close()
        rest = [delta async for delta in stream]
        assert rest[-1].finish_reason is FinishReason.ABORT

    run(main)


def test_close_is_idempotent_and_final(run, tmp_path: Path) -> None:
    async def main() -> None:
        closed = tmp_path / "closed"
        client = await ProcessClient.start(partial(build, closed=str(closed)), CONFIG, Metrics())
        await asyncio.gather(client.close(), client.close())
        await client.close()
        assert closed.exists()  # the engine left in order
        assert client.health().state is State.FAILED
        client.abort("unknown")
        await client.drain(1.0)
        with pytest.raises(Rejected) as no:
            await collect(client, request("late"))
        assert no.value.reason is Reason.UNAVAILABLE
        assert no.value.retry_after_s is None

    run(main)


def test_an_event_loop_that_ends_without_close_takes_the_engine_along(nothing_left) -> None:
    async def main() -> None:
        client = await ProcessClient.start(build, CONFIG, Metrics())
        await anext(client.generate(request("endless", max_tokens=ENDLESS)))

    asyncio.run(main())


def test_metrics_that_cannot_be_taken_do_not_stop_the_streams(run) -> None:
    def fails(delta, stats) -> None:
        raise RuntimeError("no room for metrics")

    async def main() -> None:
        client = await ProcessClient.start(quick, CONFIG, fails)
        one = request("one")
        assert tokens_of(await collect(client, one)) == reference(one)
        await client.close()

    run(main)


@pytest.mark.parametrize(
    "wrong",
    [
        {"start_timeout_s": 0},
        {"hang_timeout_s": 2},
        {"idle_hang_timeout_s": 1},
        {"restart_window_s": float("nan")},
        {"max_restarts": -1},
        {"max_buffered_deltas": 0},
    ],
)
def test_a_configuration_out_of_range_is_refused(wrong) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ProcessConfig(**wrong)


def test_a_bound_that_is_allowed_is_said_to_be_so() -> None:
    with pytest.raises(ValueError, match="max_restarts must be at least 0, got -1"):
        ProcessConfig(max_restarts=-1)
