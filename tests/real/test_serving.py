"""Many callers of the real model over real sockets: streams, twins, callers who hang up, and hostile ones."""

from __future__ import annotations

import asyncio

import httpx
import msgspec
import pytest

from inflight.engine.recorder import Added, Scheduled, Updated, read_step_log
from inflight.schedulers.config import ContinuousConfig
from inflight.schedulers.continuous import ContinuousScheduler
from inflight.sim.replay import replay
from real.serving import Phases, Server, serving
from server.hostile import hostile_requests

WORDS = ("river", "stone", "lantern", "winter", "garden", "copper", "window", "thunder", "paper", "island", "velvet")


@pytest.fixture(scope="module")
def server(model_files, tmp_path_factory):
    with serving(tmp_path_factory.mktemp("server")) as server:
        yield server


def _bytes(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]


def text_of(number: int) -> str:
    return f"Caller {number} asks about the {WORDS[number % 11]} and the {WORDS[number * 7 % 10]}."


def messages_of(number: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": text_of(number)}]


def options_of(number: int) -> dict:
    """Every other caller is greedy, the rest draw with a seed of their own."""
    sampling = {"temperature": 0.0} if number % 2 else {"temperature": 0.8, "seed": number}
    return {"model": "SmolLM2-135M-Instruct", "messages": messages_of(number), "max_tokens": 6, **sampling}


async def streamed(client, number: int) -> str:
    stream = await client.chat.completions.create(stream=True, **options_of(number))
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


async def whole(client, number: int) -> str:
    answer = await client.chat.completions.create(**options_of(number))
    return answer.choices[0].message.content


async def hang_up_in_decode(client, number: int) -> None:
    options = options_of(number) | {"max_tokens": 400, "extra_body": {"ignore_eos": True}}
    stream = await client.chat.completions.create(stream=True, **options)
    async for chunk in stream:
        if chunk.choices[0].delta.content:
            break
    await stream.close()


async def hang_up_in(phase: str, server: Server, prompt: list[int]) -> None:
    """Send token ids, and cut the connection as soon as the step log shows the request in a phase."""
    body = {"prompt": prompt, "max_tokens": 4, "stream": True}
    async with server.http() as http:
        call = asyncio.create_task(http.post("/v1/completions", json=body))
        await Phases(server.step_log).reached(prompt, phase)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)


def test_64_callers_at_once_of_whom_20_hang_up(server, tell):
    async def main():
        client = server.openai()
        async with server.http() as http:
            before = await server.idle(http)
            in_prefill = [asyncio.create_task(hang_up_in("prefill", server, [100 + i] * 600)) for i in range(6)]
            in_decode = [asyncio.create_task(hang_up_in_decode(client, 200 + i)) for i in range(7)]
            callers = [asyncio.create_task(streamed(client, number)) for number in range(44)]
            while (await server.metrics(http))["inflight_num_requests_live"] < 40:
                await asyncio.sleep(0.02)
            queued = [asyncio.create_task(hang_up_in("queued", server, [300 + i] * 8)) for i in range(7)]
            streams = await asyncio.gather(*callers)
            await asyncio.gather(*in_prefill, *in_decode, *queued)
            after = await server.idle(http)
            twins = await asyncio.gather(*(whole(client, number) for number in range(44)))
            served = await whole(client, 1)
        return before, after, streams, twins, served

    before, after, streams, twins, served = asyncio.run(asyncio.wait_for(main(), 300))
    assert streams == twins
    assert len(set(streams)) > 20
    assert served == twins[1]
    _, given_up = Phases(server.step_log).read()
    by_phase = {phase: given_up.count(phase) for phase in ("queued", "prefill", "decode")}
    tell(f"64 callers, {len(given_up)} hung up: {by_phase}")
    assert min(by_phase.values()) >= 5
    assert after["inflight_num_seqs_running"] == after["inflight_num_seqs_waiting"] == 0
    assert after["inflight_kv_cache_usage_ratio"] == 0
    ended = {
        outcome: sum(
            after.get(name, 0) - before.get(name, 0)
            for name in after
            if name.startswith("inflight_requests_total") and f'outcome="{outcome}"' in name
        )
        for outcome in ("stop", "length", "aborted", "rejected", "failed")
    }
    assert ended["aborted"] == 20
    assert ended["stop"] + ended["length"] == 44
    assert ended["rejected"] == ended["failed"] == 0


def test_a_short_request_enters_at_the_next_step_and_leaves_before_the_long_ones(server):
    long = [[7, 11, 13, 17 + i] for i in range(2)]
    short = [23, 29, 31]

    async def main():
        async with server.http() as http:
            body = {"max_tokens": 40, "ignore_eos": True, "temperature": 0}
            running = [
                asyncio.create_task(http.post("/v1/completions", json=body | {"prompt": prompt})) for prompt in long
            ]
            for prompt in long:
                await Phases(server.step_log).reached(prompt, "decode")
            await http.post("/v1/completions", json=body | {"prompt": short, "max_tokens": 3})
            await asyncio.gather(*running)

    asyncio.run(asyncio.wait_for(main(), 120))
    names, ends, entered, came = {}, [], None, False
    for line in read_step_log(server.step_log):
        match line:
            case Added(_, request):
                names[request.request_id] = list(request.prompt_token_ids)
                came = list(request.prompt_token_ids) == short
            case Scheduled(_, output) if came:
                entered, came = [names[row.seq_id[0]] for row in output.scheduled], False
            case Updated():
                ends += [names[event.seq_id[0]] for event in line.events if event.finish_reason]
    assert entered is not None
    assert short in entered
    assert all(prompt in entered for prompt in long)
    assert ends.index(short) < min(ends.index(prompt) for prompt in long)


def test_1000_hostile_requests_beside_50_good_ones(server, tell):
    async def main():
        statuses = {}
        async with server.http() as http:
            expected = [await whole(server.openai(), number) for number in range(5)]

            async def attack(requests) -> None:
                for method, path, headers, body in requests:
                    try:
                        answer = await http.request(method, path, headers=_bytes(headers), content=body)
                        statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
                    except httpx.HTTPError as error:  # the server may close on a caller that sends no HTTP
                        statuses[type(error).__name__] = statuses.get(type(error).__name__, 0) + 1

            requests = list(hostile_requests(2, 1000))
            attackers = [asyncio.create_task(attack(requests[part::4])) for part in range(4)]
            client = server.openai()
            got = []
            for _ in range(10):
                got += await asyncio.gather(*(whole(client, number) for number in range(5)))
            await asyncio.gather(*attackers)
            health = await http.get("/health")
            await server.idle(http)
        return statuses, expected, got, health

    statuses, expected, got, health = asyncio.run(asyncio.wait_for(main(), 400))
    tell(f"1,000 hostile requests: {dict(sorted(statuses.items(), key=str))}")
    assert got == expected * 10
    assert sum(statuses.values()) == 1000
    assert [status for status in statuses if isinstance(status, int) and status >= 500 and status != 503] == []
    assert health.status_code == 200
    assert health.json().get("num_restarts", 0) == 0


def test_all_that_was_decided_is_decided_again(server, tell):
    """The twin of a real run: whatever the tests before this one did to the server."""

    async def main():
        async with server.http() as http:
            await whole(server.openai(), 3)
            await server.idle(http)

    asyncio.run(asyncio.wait_for(main(), 60))
    started, *log = read_step_log(server.step_log)
    scheduler = ContinuousScheduler(ContinuousConfig(**started.config), started.num_blocks, started.block_size)
    num_steps = 0
    for decision in replay(log, scheduler):
        assert msgspec.json.encode(decision.replayed) == msgspec.json.encode(decision.recorded)
        num_steps += 1
    tell(f"{num_steps} steps of a real run decided again, byte for byte")
    assert num_steps == sum(isinstance(line, Scheduled) for line in log) > 0
    scheduler.check()
