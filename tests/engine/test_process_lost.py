"""A real engine process that is killed, hangs, breaks or cannot be built; and one whose parent is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import psutil
import pytest

from engine.conftest import PATIENCE_S, Metrics, until
from engine.process_fakes import (
    EXIT,
    HANG,
    VIOLATE,
    build,
    build_exits,
    build_never,
    build_once,
    build_slowly,
    request,
)
from engine.test_process import CONFIG, ENDLESS, collect, reference, tokens_of
from inflight.core.errors import Reason, Rejected
from inflight.core.output import FinishReason, SchedulerStats
from inflight.engine.events import State
from inflight.engine.process import EngineStartFailed, ProcessClient, ProcessConfig


def engine_pid() -> int:
    (engine,) = psutil.Process().children()
    return engine.pid


def test_kill_9_under_load_is_told_to_every_caller_and_survived(run) -> None:
    async def main() -> None:
        metrics = Metrics()
        client = await ProcessClient.start(build, CONFIG, metrics)
        streams = [client.generate(request(f"d{i}", max_tokens=ENDLESS)) for i in range(4)]
        got = [[await anext(stream)] for stream in streams]
        waiting = [asyncio.create_task(collect(client, request(f"w{i}", n=2))) for i in range(4)]
        await metrics.until(lambda stats: stats.num_waiting_seqs == 8)
        num_in_flight = len(streams) + len(waiting)

        old_pid = engine_pid()
        os.kill(old_pid, signal.SIGKILL)
        await until(lambda: client.health().state is State.RESTARTING)
        assert "signal 9 (SIGKILL)" in client.health().reason
        assert (metrics.num_engines_lost, metrics.num_lost, metrics.stats) == (1, num_in_flight, SchedulerStats())
        with pytest.raises(Rejected) as no:
            await collect(client, request("early"))
        assert no.value.reason is Reason.UNAVAILABLE
        assert no.value.retry_after_s > 0
        for i, stream in enumerate(streams):
            got[i] += [delta async for delta in stream]
            assert got[i][-1].finish_reason is FinishReason.ERROR
            assert "signal 9" in got[i][-1].error
            num_tokens = len(got[i]) - 1
            assert tokens_of(got[i]) == reference(request("d", max_tokens=num_tokens))
        for answer in waiting:
            assert [(delta.seq_id[1], delta.finish_reason) for delta in await answer] == [
                (0, FinishReason.ERROR),
                (1, FinishReason.ERROR),
            ]

        await until(lambda: client.health().state is State.READY)
        assert (client.health().num_restarts, client.health().reason) == (1, None)
        assert engine_pid() != old_pid
        assert client.info.model_name == f"paper-{engine_pid()}"
        again = request("d0")  # the old id is free: what held it is gone
        assert tokens_of(await collect(client, again)) == reference(again)
        await client.close()

    run(main)


def test_what_was_given_up_when_the_engine_died_is_counted_too(run) -> None:
    async def main() -> None:
        metrics = Metrics()
        client = await ProcessClient.start(build, CONFIG, metrics)
        streams = [client.generate(request(f"r{i}", max_tokens=ENDLESS)) for i in range(3)]
        for stream in streams:
            await anext(stream)
        engine = psutil.Process(engine_pid())
        engine.suspend()  # so that it cannot say that it let go of the request
        await until(lambda: engine.status() == psutil.STATUS_STOPPED)
        await streams[0].aclose()
        engine.kill()
        await until(lambda: client.health().state is State.RESTARTING)
        assert (metrics.num_lost, metrics.num_lost_aborted) == (2, 1)
        await until(lambda: client.health().state is State.READY)
        await client.close()

    run(main)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (VIOLATE, "the engine failed: InvariantViolation: a law was broken on purpose"),
        (EXIT, "the engine process exited with code 7"),
    ],
)
def test_an_engine_that_breaks_says_why(run, command, why) -> None:
    async def main() -> None:
        client = await ProcessClient.start(build, CONFIG, Metrics())
        beside = client.generate(request("beside", max_tokens=ENDLESS))
        await anext(beside)
        (delta,) = await collect(client, request("culprit", prompt=(command, 1)))
        assert delta.finish_reason is FinishReason.ERROR
        said, _, file = delta.error.partition("; the last steps are in ")
        assert said == why
        if file:
            Path(file).unlink()
        assert [delta async for delta in beside][-1].error == delta.error
        assert client.health().reason == delta.error
        await until(lambda: client.health().state is State.READY)
        await client.close()

    run(main)


def test_a_step_that_never_ends_is_found_and_ended(run, capfd) -> None:
    async def main() -> None:
        client = await ProcessClient.start(build, ProcessConfig(hang_timeout_s=2.1), Metrics())
        beside = client.generate(request("beside", max_tokens=ENDLESS))
        await anext(beside)
        (delta,) = await collect(client, request("culprit", prompt=(HANG, 1)))
        assert delta.finish_reason is FinishReason.ERROR
        assert "silent" in delta.error
        assert [delta async for delta in beside][-1].finish_reason is FinishReason.ERROR
        await until(lambda: client.health().state is State.READY)
        assert client.health().num_restarts == 1
        good = request("good")
        assert tokens_of(await collect(client, good)) == reference(good)
        await client.close()

    run(main)
    assert "in execute" in capfd.readouterr().err  # where it hung


def test_an_idle_engine_that_falls_silent_is_restarted(run) -> None:
    async def main() -> None:
        client = await ProcessClient.start(build, ProcessConfig(idle_hang_timeout_s=2.1), Metrics())
        os.kill(engine_pid(), signal.SIGSTOP)
        await until(lambda: client.health().num_restarts == 1 and client.health().state is State.READY)
        good = request("good")
        assert tokens_of(await collect(client, good)) == reference(good)
        await client.close()

    run(main)


def test_an_idle_engine_is_not_taken_for_a_silent_one(run) -> None:
    async def main() -> None:
        client = await ProcessClient.start(build, ProcessConfig(hang_timeout_s=2.1, idle_hang_timeout_s=2.1), Metrics())
        pid = engine_pid()
        await asyncio.sleep(2.5)  # longer than both limits
        assert (engine_pid(), client.health().num_restarts) == (pid, 0)
        await client.close()

    run(main)


def test_restarts_are_bounded(run) -> None:
    async def main() -> None:
        client = await ProcessClient.start(build, ProcessConfig(max_restarts=2), Metrics())
        for num_restarts in (1, 2):
            os.kill(engine_pid(), signal.SIGKILL)
            await until(lambda: client.health().state is State.RESTARTING)
            await until(lambda: client.health().state is State.READY)
            assert client.health().num_restarts == num_restarts
        os.kill(engine_pid(), signal.SIGKILL)
        await until(lambda: client.health().state is State.FAILED)
        assert "signal 9" in client.health().reason
        with pytest.raises(Rejected) as no:
            await collect(client, request("late"))
        assert no.value.reason is Reason.UNAVAILABLE
        assert no.value.retry_after_s is None
        await until(lambda: psutil.Process().children() == [])
        await client.close()
        assert "signal 9" in client.health().reason  # close does not hide why

    run(main)


def test_restarts_outside_the_window_do_not_count(run) -> None:
    async def main() -> None:
        config = ProcessConfig(max_restarts=1, restart_window_s=0.001)
        client = await ProcessClient.start(build, config, Metrics())
        for num_restarts in (1, 2, 3):
            os.kill(engine_pid(), signal.SIGKILL)
            await until(lambda expected=num_restarts: client.health().num_restarts == expected)
            await until(lambda: client.health().state is State.READY)
        await client.close()

    run(main)


def test_an_engine_that_cannot_be_built_again_is_given_up(run, tmp_path: Path) -> None:
    async def main() -> None:
        factory = partial(build_once, str(tmp_path / "built"))
        client = await ProcessClient.start(factory, ProcessConfig(max_restarts=2), Metrics())
        os.kill(engine_pid(), signal.SIGKILL)
        await until(lambda: client.health().state is State.FAILED)
        assert "FileExistsError" in client.health().reason
        await client.close()

    run(main)


def test_an_engine_that_dies_while_draining_is_not_restarted(run) -> None:
    async def main() -> None:
        client = await ProcessClient.start(build, CONFIG, Metrics())
        answer = asyncio.create_task(collect(client, request("one", max_tokens=ENDLESS)))
        await asyncio.sleep(0)
        draining = asyncio.create_task(client.drain(PATIENCE_S))
        await asyncio.sleep(0)
        os.kill(engine_pid(), signal.SIGKILL)
        assert (await answer)[-1].finish_reason is FinishReason.ERROR
        await draining
        assert client.health().state is State.FAILED
        await client.close()

    run(main)


@pytest.mark.parametrize(
    ("factory", "why"),
    [
        (build_never, "FileNotFoundError: there is no such model"),
        (build_exits, "the licence was not accepted"),
        (lambda: build(), "pickle"),
    ],
)
def test_an_engine_that_cannot_be_built_fails_the_start_with_the_reason(run, factory, why) -> None:
    async def main() -> None:
        with pytest.raises(EngineStartFailed, match=why):
            await ProcessClient.start(factory, CONFIG, Metrics())

    run(main)


def test_an_engine_that_is_built_too_slowly_fails_the_start(run) -> None:
    async def main() -> None:
        with pytest.raises(EngineStartFailed, match=r"not ready after 0\.5 s"):
            await ProcessClient.start(build_slowly, ProcessConfig(start_timeout_s=0.5), Metrics())

    run(main)


def test_a_start_that_is_cancelled_leaves_nothing(run) -> None:
    async def main() -> None:
        starting = asyncio.create_task(ProcessClient.start(build_slowly, CONFIG, Metrics()))
        await until(lambda: psutil.Process().children() != [])
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    run(main)


@pytest.mark.parametrize("moment", [0, 1, 2, 5])
def test_an_event_loop_may_end_at_any_moment_of_a_restart(nothing_left, moment) -> None:
    async def main() -> None:
        client = await ProcessClient.start(build, CONFIG, Metrics())
        os.kill(engine_pid(), signal.SIGKILL)
        await until(lambda: client.health().state is State.RESTARTING)
        for _ in range(moment):
            await asyncio.sleep(0)

    asyncio.run(main())


PARENT = """
import asyncio, sys
from engine.process_fakes import build, request
from inflight.engine.process import ProcessClient, ProcessConfig

async def main(command):
    client = await ProcessClient.start(build, ProcessConfig(), lambda delta, stats: None)
    if command == "idle":
        print("up", flush=True)
        await asyncio.sleep(3600)
    stream = client.generate(request("busy", max_tokens=40_000))
    await anext(stream)
    print("up", flush=True)
    async for _ in stream:
        pass

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.parametrize("command", ["idle", "busy"])
def test_an_engine_dies_with_its_parent(nothing_left, command) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, command],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with parent:
        assert parent.stdout.readline() == b"up\n"
        (engine,) = psutil.Process(parent.pid).children()
        parent.kill()
    gone, alive = psutil.wait_procs([engine], timeout=PATIENCE_S)
    assert (gone, alive) == ([engine], [])
