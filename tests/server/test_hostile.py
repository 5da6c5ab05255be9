"""Hostile requests beside good ones: nobody gets a 500, and the good ones get what they always get."""

import asyncio
from collections import Counter

import httpx

from inflight.core.errors import Rejected
from inflight.server.body import parse
from inflight.server.protocol import ChatCompletionRequest, CompletionRequest
from server.hostile import HostileRequest, hostile_requests
from server.live import Live, live, until

MODELS: dict[str, type[CompletionRequest] | type[ChatCompletionRequest]] = {
    "/v1/completions": CompletionRequest,
    "/v1/chat/completions": ChatCompletionRequest,
}


def test_the_generator_is_deterministic() -> None:
    assert list(hostile_requests(1, 200)) == list(hostile_requests(1, 200))
    assert list(hostile_requests(1, 200)) != list(hostile_requests(2, 200))


def test_what_turns_out_to_be_legal_asks_for_a_few_tokens() -> None:
    """Or for so many that no context has room for them, which is refused."""
    num_legal = 0
    for _, path, headers, body in hostile_requests(2, 5_000):
        model = MODELS.get(path)
        if model is None or not headers.get("content-type", "").startswith("application/json"):
            continue
        try:
            request = parse(body, model)
            max_tokens = getattr(request, "max_completion_tokens", None) or request.max_tokens
            request.sampling(0, max_tokens, None)
        except Rejected:
            continue
        num_legal += 1
        assert max_tokens is not None, body
        assert max_tokens < 100 or max_tokens >= 2**31, body
    assert num_legal > 100


def test_no_500_and_good_requests_are_served() -> None:
    asyncio.run(_hostile_and_good(num_hostile=300, num_good=30))


async def _hostile_and_good(num_hostile: int, num_good: int) -> None:
    async with live() as server:
        statuses: Counter[int] = Counter()
        bad: list[tuple[int, str, HostileRequest]] = []
        requests = hostile_requests(20, num_hostile)

        async def attack() -> None:
            for method, path, headers, body in requests:
                raw = {name: value.encode("latin-1") for name, value in headers.items()}
                response = await server.http.request(method, path, headers=raw, content=body)
                statuses[response.status_code] += 1
                if response.status_code >= 500 or not _well_formed(response, method):
                    bad.append((response.status_code, response.text[:200], (method, path, headers, body[:200])))

        expected = await _good(server, 0)
        _, *served = await asyncio.gather(
            asyncio.gather(*(attack() for _ in range(4))), *(_good(server, number) for number in range(num_good))
        )
        assert bad == []
        assert served == [expected] * num_good
        assert statuses.total() == num_hostile
        assert set(statuses) >= {200, 400, 404, 405, 413}  # the generator reaches all of these
        assert statuses[400] > num_hostile / 2
        await until(lambda: not server.client.waiting and not server.client.decoding)


async def _good(server: Live, number: int) -> str:
    await asyncio.sleep(number / 20)
    body = {"messages": [{"role": "user", "content": "hi"}], "seed": 5}
    if number % 2:
        response = await server.post("/v1/chat/completions", body)
        return str(response.json()["choices"][0]["message"]["content"])
    chunks = await server.chunks("/v1/chat/completions", body)
    return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)


def _well_formed(response: httpx.Response, method: str) -> bool:
    if response.status_code < 400 or method == "HEAD":
        return True
    return list(response.json()["error"]) == ["message", "type", "param", "code"]
