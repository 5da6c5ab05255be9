from __future__ import annotations

import asyncio
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.core.errors import Reason, Rejected
from inflight.core.output import FinishReason, SampledToken, SchedulerStats
from inflight.engine.events import ChoiceDelta
from inflight.engine.ipc_stream import DeltaStream, StreamTable
from inflight.engine.wire import Refused, Step
from inflight.metrics.delta import MetricsDelta

STATS = SchedulerStats()


def delta(request_id: str, choice: int, number: int, last: bool = False) -> ChoiceDelta:
    return ChoiceDelta(
        (request_id, choice), str(number), (SampledToken(number),), FinishReason.LENGTH if last else None
    )


def step(*deltas: ChoiceDelta, aborted: tuple[str, ...] = ()) -> Step:
    return Step(deltas, aborted, MetricsDelta(), STATS)


async def read_all(stream: DeltaStream) -> list[ChoiceDelta]:
    deltas = []
    while (one := await stream.next()) is not None:
        deltas.append(one)
    return deltas


@given(
    st.dictionaries(st.sampled_from("abcd"), st.lists(st.integers(1, 5), min_size=1, max_size=3), min_size=1),
    st.integers(0, 2**32),
)
def test_each_reader_gets_exactly_its_own_deltas_in_order(lengths: dict[str, list[int]], seed: int) -> None:
    random = Random(seed)
    queues = {
        (request_id, choice): [delta(request_id, choice, i, i == length - 1) for i in range(length)]
        for request_id, choices in lengths.items()
        for choice, length in enumerate(choices)
    }
    expected = {seq_id: list(queue) for seq_id, queue in queues.items()}

    async def main() -> dict[str, list[ChoiceDelta]]:
        table = StreamTable(100)
        readers = {
            request_id: asyncio.create_task(read_all(table.open(request_id, len(choices))))
            for request_id, choices in lengths.items()
        }
        while queues:
            some = random.sample(sorted(queues), random.randint(0, len(queues)))
            assert table.take(step(*[queues[seq_id].pop(0) for seq_id in some])) == []
            for seq_id in some:
                if not queues[seq_id]:
                    del queues[seq_id]
            if random.random() < 0.5:
                await asyncio.sleep(0)
        assert len(table) == 0
        return {request_id: await reader for request_id, reader in readers.items()}

    for request_id, got in asyncio.run(main()).items():
        for choice in range(len(lengths[request_id])):
            seq_id = (request_id, choice)
            assert [one for one in got if one.seq_id == seq_id] == expected[seq_id]


def test_a_reader_that_is_behind_is_named_once_and_keeps_what_it_had() -> None:
    async def main() -> None:
        table = StreamTable(2)
        stream = table.open("a", 2)  # two choices: room for 2 * 2
        assert table.take(step(delta("a", 0, 0), delta("a", 1, 0))) == []
        assert table.take(step(delta("a", 0, 1), delta("a", 1, 1))) == []
        assert table.take(step(delta("a", 0, 2), delta("a", 1, 2))) == [stream]
        table.give_up(stream, FinishReason.ERROR, "slow")
        got = await read_all(stream)
        assert [(one.seq_id[1], one.text) for one in got] == [(0, "0"), (1, "0"), (0, "1"), (1, "1"), (0, ""), (1, "")]
        assert [(one.finish_reason, one.error) for one in got[4:]] == [(FinishReason.ERROR, "slow")] * 2

    asyncio.run(main())


def test_an_id_is_free_again_only_after_the_engine_let_go_of_it() -> None:
    async def main() -> None:
        table = StreamTable(10)
        first = table.open("a", 1)
        with pytest.raises(Rejected):
            table.open("a", 1)
        table.give_up(first, FinishReason.ABORT)
        assert (len(table), table.num_given_up) == (0, 1)
        with pytest.raises(Rejected) as no:
            table.open("a", 1)
        assert (no.value.reason, no.value.param) == (Reason.INVALID, "request_id")
        table.take(step(delta("a", 0, 7), aborted=("a",)))  # the last delta and the answer travel together
        assert table.num_given_up == 0
        second = table.open("a", 1)
        table.take(step(delta("a", 0, 8, last=True)))
        assert [one.text for one in await read_all(second)] == ["8"]

    asyncio.run(main())


def test_a_finished_request_frees_its_id_before_it_is_read() -> None:
    async def main() -> None:
        table = StreamTable(10)
        first = table.open("a", 1)
        table.take(step(delta("a", 0, 1, last=True)))
        second = table.open("a", 1)
        table.take(step(delta("a", 0, 2, last=True)))
        assert [one.text for one in await read_all(first)] == ["1"]
        assert [one.text for one in await read_all(second)] == ["2"]

    asyncio.run(main())


def test_the_end_of_the_engine_ends_the_unfinished_choices_only() -> None:
    async def main() -> None:
        table = StreamTable(10)
        stream = table.open("a", 3)
        table.take(step(delta("a", 1, 0, last=True), delta("a", 0, 0)))
        table.end_all(FinishReason.ERROR, "killed")
        got = await read_all(stream)
        assert [(one.seq_id[1], one.finish_reason) for one in got] == [
            (1, FinishReason.LENGTH),
            (0, None),
            (0, FinishReason.ERROR),
            (2, FinishReason.ERROR),
        ]
        assert stream.ended
        table.open("a", 1)

    asyncio.run(main())


def test_a_refusal_is_raised_at_the_reader() -> None:
    async def main() -> None:
        table = StreamTable(10)
        stream = table.open("a", 2)
        reader = asyncio.create_task(stream.next())
        await asyncio.sleep(0)
        table.refuse(Refused("a", Reason.QUEUE_FULL, "full", None, 2.0))
        with pytest.raises(Rejected) as no:
            await reader
        assert (no.value.reason, no.value.message, no.value.retry_after_s) == (Reason.QUEUE_FULL, "full", 2.0)
        assert stream.ended
        assert len(table) == 0

    asyncio.run(main())
