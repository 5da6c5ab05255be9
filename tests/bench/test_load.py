"""Requests are sent when they arrive, by as many callers as there are, whatever the server does."""

import asyncio
import time

from bench.bad_server import BadServer, answers, bad_server, hangs, in_loop
from inflight.bench.load import run_load
from inflight.bench.outcome import ErrorKind
from inflight.workload.item import WorkItem


def items(*arrivals_s: float) -> list[WorkItem]:
    return [WorkItem(str(index), (1, 2, 3), 2, arrival_s) for index, arrival_s in enumerate(arrivals_s)]


@in_loop
async def test_an_open_loop_does_not_wait_for_a_server_that_never_answers() -> None:
    arrivals_s = (0.0, 0.05, 0.1, 0.15)
    async with bad_server(hangs) as server:
        outcomes = await run_load(server.endpoint(timeout_s=0.5), items(*arrivals_s))
    assert {outcome.error.kind for outcome in outcomes if outcome.error} == {ErrorKind.TIMEOUT}
    in_order = sorted(outcomes, key=lambda outcome: outcome.item_id)
    assert len(in_order) == 4
    start_s = in_order[0].scheduled_s
    for outcome, arrival_s in zip(in_order, arrivals_s, strict=True):
        assert abs(outcome.scheduled_s - start_s - arrival_s) < 1e-6
        assert outcome.due_s == outcome.scheduled_s <= outcome.sent_s
    # The last one was sent before the first one had given up: nobody waited for anybody.
    assert in_order[-1].sent_s < in_order[0].end_s
    assert server.most_open == 4


@in_loop
async def test_items_are_sent_in_the_order_of_their_arrivals() -> None:
    async with bad_server(answers) as server:
        outcomes = await run_load(server.endpoint(), items(0.1, 0.0, 0.05), max_concurrency=1)
    assert [outcome.item_id for outcome in outcomes] == ["1", "2", "0"]


@in_loop
async def test_a_caller_waits_for_its_answer_before_it_asks_again() -> None:
    async def answers_slowly(body: dict, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.01)
        await answers(body, writer)

    async with bad_server(answers_slowly) as server:
        outcomes = await run_load(server.endpoint(), items(*[0.0] * 9), max_concurrency=3)
    assert len(outcomes) == 9
    assert server.most_open == 3
    ends_s = sorted(outcome.end_s for outcome in outcomes)
    dues_s = sorted(outcome.due_s for outcome in outcomes)
    assert dues_s[3:] == ends_s[:6]  # each later one is due when a caller has its answer
    assert all(outcome.error is None for outcome in outcomes)


@in_loop
async def test_errors_end_nothing() -> None:
    seen = []

    async def fails_every_other_time(body: dict, writer: asyncio.StreamWriter) -> None:
        seen.append(body)
        if len(seen) % 2:
            await answers(body, writer)

    told = []
    async with bad_server(fails_every_other_time) as server:
        outcomes = await run_load(server.endpoint(), items(*[0.0] * 6), 1, told.append)
    assert [outcome.error is None for outcome in outcomes] == [True, False] * 3
    assert told == outcomes


@in_loop
async def test_a_run_that_is_broken_off_gives_what_had_ended() -> None:
    seen = []

    async def answers_two(body: dict, writer: asyncio.StreamWriter) -> None:
        seen.append(body)
        await (answers if len(seen) <= 2 else hangs)(body, writer)

    async with bad_server(answers_two) as server:
        run = asyncio.create_task(run_load(server.endpoint(), items(*[0.0] * 5), 1))
        while len(seen) < 3:
            await asyncio.sleep(0.01)
        run.cancel()
        outcomes = await run
    assert [outcome.item_id for outcome in outcomes] == ["0", "1"]
    assert not run.cancelled()


@in_loop
async def test_lateness_is_measured() -> None:
    async def block() -> None:
        await asyncio.sleep(0.05)
        time.sleep(0.1)  # the generator is held up, as by a busy machine

    async with bad_server(answers) as server:
        blocking = asyncio.create_task(block())
        (outcome,) = await run_load(server.endpoint(), items(0.06))
        await blocking
    assert outcome.sent_s - outcome.due_s > 0.05


@in_loop
async def test_no_items_are_no_outcomes() -> None:
    assert await run_load(BadServer("http://127.0.0.1:1").endpoint(), []) == []
