"""Every failure over the wire: its status, and always the same shape."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest

from inflight.core.errors import Reason, Rejected
from inflight.engine.events import Health, State
from inflight.server.body import parse
from inflight.server.errors import answer_to
from server.fake_client import INFO, MAX_MODEL_LEN
from server.live import in_loop, live, until

PATH = "/v1/completions"
CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}
HI = [{"role": "user", "content": "hi"}]


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    body = response.json()
    assert list(body) == ["error"]
    assert list(body["error"]) == ["message", "type", "param", "code"]
    assert body["error"]["message"]
    assert response.headers["x-request-id"]
    return body["error"]


@in_loop
async def test_the_callers_faults() -> None:
    async with live(max_body_bytes=1_000_000) as server:
        post = server.post
        assert error_of(await post(PATH, {"prompt": "x", "model": "gpt-5"}), 404)["code"] == "model_not_found"
        assert error_of(await post(PATH, {"prompt": ""}), 400)["param"] == "prompt"
        assert error_of(await post(PATH, {"prompt": []}), 400)["param"] == "prompt"
        assert error_of(await post(PATH, {"prompt": [[]]}), 400)["param"] == "prompt"
        assert error_of(await post(PATH, {"prompt": [256, 257]}), 400)["param"] == "prompt"
        assert error_of(await post(PATH, {"prompt": [-1]}), 400)["param"] == "prompt"
        assert error_of(await post(PATH, {"prompt": [2**70]}), 400)["param"] == "prompt"
        assert error_of(await post(PATH, {"prompt": "x", "logit_bias": {"257": 1}}), 400)["param"] == "logit_bias"
        assert error_of(await post(PATH, {"prompt": "x", "n": "2"}), 400)["param"] == "n"
        assert error_of(await post(PATH, {"prompt": "x", "priority": 2**40}), 400)["param"] == "priority"
        assert error_of(await post(CHAT, {"messages": []}), 400)["param"] == "messages"
        image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
        assert "supported" in error_of(await post(CHAT, {"messages": image}), 400)["message"]
        broken = await server.http.post(PATH, content=b"{", headers=JSON)
        assert error_of(broken, 400)["type"] == "invalid_request_error"
        assert error_of(await server.http.get("/v1/nothing"), 404)["code"] == "not_found"
        assert error_of(await server.http.get("/health/"), 404)["code"] == "not_found"
        wrong_method = await server.http.get(PATH)
        assert error_of(wrong_method, 405)["code"] == "method_not_allowed"
        assert wrong_method.headers["allow"] == "POST"
        assert not server.client.requests


@in_loop
async def test_only_a_body_that_is_declared_as_json_is_read() -> None:
    body = b'{"prompt": "x", "max_tokens": 2}'
    async with live() as server:
        for declared in ({}, *({"content-type": name} for name in ("", "text/plain", "text/x+json", "a/b+json"))):
            response = await server.http.post(PATH, content=body, headers=declared)
            assert "application/json" in error_of(response, 415)["message"]
        assert not server.client.requests
        for name in ("application/json", "Application/JSON; charset=utf-8"):
            response = await server.http.post(PATH, content=body, headers={"content-type": name})
            assert response.status_code == 200


@in_loop
async def test_a_body_that_does_not_arrive_is_given_up() -> None:
    async with live(request_timeout_s=0.2) as server:
        reader, writer = await server.connect()
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b'Content-Length: 50\r\n\r\n{"prompt"'
        )
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")  # to the end: it is closed
        assert head.startswith(b"HTTP/1.1 408 ")
        assert json.loads(body)["error"]["code"] == "request_timeout"
        writer.close()


@in_loop
async def test_messages_quote_little_of_what_was_sent() -> None:
    async with live() as server:
        image = [{"role": "user", "content": [{"type": "i" * 100_000}]}]
        assert len(error_of(await server.post(CHAT, {"messages": image}), 400)["message"]) <= 500


@in_loop
async def test_a_long_body_is_parsed_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[bool] = []

    def parse_and_tell(*args: Any) -> Any:
        threads.append(threading.current_thread() is threading.main_thread())
        return parse(*args)

    monkeypatch.setattr("inflight.server.body.parse", parse_and_tell)
    async with live() as server:
        for num_chars in (10, 100_000):
            assert (await server.post("/tokenize", {"prompt": "x", "user": "u" * num_chars})).status_code == 200
    assert threads == [True, False]


@in_loop
async def test_too_long_prompts_are_refused_with_both_numbers() -> None:
    async with live() as server:
        for prompt, max_tokens, number in (("x" * 5000, None, 5000), ([1] * 600, 5, 600), ("x" * 500, 100, 500)):
            error = error_of(await server.post(PATH, {"prompt": prompt, "max_tokens": max_tokens}), 400)
            assert error["code"] == "context_length_exceeded"
            assert str(number) in error["message"]
            assert str(MAX_MODEL_LEN) in error["message"]
        for path in (PATH, "/tokenize"):  # so long that it is refused unread
            error = error_of(await server.post(path, {"prompt": "x" * 5_000_000}), 400)
            assert error["code"] == "context_length_exceeded"
            assert "at least 714285" in error["message"]
        error = error_of(await server.post(CHAT, {"messages": [{"role": "user", "content": "x" * 5000}]}), 400)
        assert error["code"] == "context_length_exceeded"


@in_loop
async def test_bodies_over_the_limit() -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b" " * 500

    async with live(max_body_bytes=1000) as server:
        assert (
            error_of(await server.http.post(PATH, content=b" " * 1001, headers=JSON), 413)["code"] == "body_too_large"
        )
        assert error_of(await server.http.post(PATH, content=endless(), headers=JSON), 413)["code"] == "body_too_large"
        body = json.dumps({"prompt": "x", "pad": ""})
        body = body.replace('""', '"' + "p" * (1000 - len(body)) + '"')
        assert (await server.http.post(PATH, content=body.encode(), headers=JSON)).status_code == 200


@in_loop
async def test_reading_stops_after_the_limit() -> None:
    """A caller who sends without end is answered and cut off, whatever it goes on to send."""
    async with live(max_body_bytes=1000) as server:
        _, writer = await server.connect()
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        num_sent = 0
        try:
            while num_sent < 1_000_000_000:
                writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
                num_sent += 0x10000
                await writer.drain()
        except ConnectionError:
            pass
        assert num_sent < 1_000_000_000
        writer.close()
        assert (await server.post(PATH, {"prompt": "x"})).status_code == 200


@in_loop
async def test_more_sequences_in_one_call_than_may_ever_wait() -> None:
    async with live() as server:
        server.client.info = replace(INFO, max_num_waiting_seqs=4)
        for body, param in (({"prompt": ["x"] * 5}, "prompt"), ({"prompt": ["x", "y"], "n": 3}, "prompt")):
            error = error_of(await server.post(PATH, body), 400)
            assert error["param"] == param
            assert "no more than 4 may wait" in error["message"]
        assert error_of(await server.post(CHAT, {"messages": HI, "n": 5}), 400)["param"] == "n"
        assert (await server.post(PATH, {"prompt": ["x", "y"], "n": 2})).status_code == 200


@in_loop
async def test_a_full_queue_and_an_engine_that_is_down() -> None:
    async with live() as server:
        server.client.rejects = Rejected(Reason.QUEUE_FULL, "the queue is full", retry_after_s=3.2)
        for stream in (False, True):
            response = await server.post(PATH, {"prompt": "x", "stream": stream})
            assert error_of(response, 503)["code"] == "queue_full"
            assert response.headers["retry-after"] == "4"
        with pytest.raises(openai.InternalServerError):
            await server.openai.completions.create(model="fake-model", prompt="x")
        server.client.rejects = None
        await server.client.drain(0)
        response = await server.post(CHAT, {"messages": HI, "stream": True})
        assert error_of(response, 503)["code"] == "engine_unavailable"
        assert response.headers["retry-after"] == "3"


@in_loop
async def test_callers_are_asked_to_wait_only_where_that_may_help() -> None:
    async with live() as server:
        for reason in (Reason.QUEUE_FULL, Reason.UNAVAILABLE):
            for retry_after_s, expected in ((None, None), (0.0, "1"), (1.5, "2")):
                server.client.rejects = Rejected(reason, "no", retry_after_s=retry_after_s)
                response = await server.post(PATH, {"prompt": "x"})
                assert error_of(response, 503)["code"] == reason.value
                assert response.headers.get("retry-after") == expected


@pytest.mark.parametrize(
    ("state", "retry_after"),
    [(State.READY, None), (State.RESTARTING, "1"), (State.DRAINING, None), (State.FAILED, None)],
)
@in_loop
async def test_a_request_that_is_lost_before_the_first_token(state: State, retry_after: str | None) -> None:
    """In an engine that is ready it failed by itself, and would do so again."""
    async with live() as server:
        for stream in (False, True):
            server.client.state, server.client.lost = Health(State.READY), None
            server.client.admits.clear()
            call = asyncio.create_task(server.post(PATH, {"prompt": "x", "stream": stream}))
            await until(lambda: bool(server.client.waiting))
            server.client.state, server.client.lost = Health(state), "killed by signal 9"
            server.client.admits.set()
            response = await call
            assert error_of(response, 503)["message"] == "killed by signal 9"
            assert response.headers.get("retry-after") == retry_after


@in_loop
async def test_an_engine_that_is_lost_in_the_middle() -> None:
    async with live() as server:
        server.client.decodes.clear()
        streams = [asyncio.create_task(server.events(PATH, {"prompt": "x"})) for _ in range(2)]
        whole = asyncio.create_task(server.post(PATH, {"prompt": "x", "n": 2}))
        while server.client.num_yielded < 4:
            await asyncio.sleep(0.002)
        server.client.lost = "the engine is gone"
        server.client.decodes.set()
        for stream in streams:
            *_, last = await stream
            error = json.loads(last)["error"]
            assert error["message"] == "the engine is gone"
            assert list(error) == ["message", "type", "param", "code"]
        assert error_of(await whole, 503)
        server.client.lost = None
        assert (await server.post(PATH, {"prompt": "x"})).status_code == 200


@in_loop
async def test_a_request_that_is_aborted_from_our_side() -> None:
    async with live() as server:
        server.client.decodes.clear()
        stream = asyncio.create_task(server.events(PATH, {"prompt": "x"}))
        while not server.client.decoding:
            await asyncio.sleep(0.002)
        server.client.abort(server.client.requests[0].request_id)
        server.client.decodes.set()
        assert "error" in json.loads((await stream)[-1])


@in_loop
async def test_what_nobody_foresaw_is_told_without_its_insides(caplog: pytest.LogCaptureFixture) -> None:
    async with live() as server:
        server.client.raises = RuntimeError("secret")
        error = error_of(await server.post(PATH, {"prompt": "x"}), 500)
        assert "secret" not in json.dumps(error)
        *_, last = await server.events(PATH, {"prompt": "x"})
        assert "secret" not in last
        assert json.loads(last)["error"]["code"] == "internal_error"
        assert "secret" in caplog.text
        server.client.raises = None
        assert (await server.post(PATH, {"prompt": "x"})).status_code == 200


def test_nesting_that_exhausts_the_stack_is_the_callers_fault() -> None:
    """Wherever it happens: what a caller sends is the only thing here whose depth has no bound."""
    assert answer_to(RecursionError()).status == 400


@in_loop
async def test_api_keys() -> None:
    async with live(api_key=("right", "also-right")) as server:
        for header in ("", "Bearer wrong", "Bearer", "right", "Basic right", "Bearer rightx", "Bearer \u00fc"):
            headers = {"Authorization": header.encode("latin-1")} if header else {}
            response = await server.http.post(PATH, json={"prompt": "x"}, headers=headers)
            assert error_of(response, 401)["code"] == "invalid_api_key"
            assert response.headers["www-authenticate"] == "Bearer"
        for key in ("right", "also-right"):
            assert (await server.post(PATH, {"prompt": "x"}, headers={"Authorization": f"Bearer {key}"})).is_success
        for path in ("/health", "/ready", "/ping", "/version", "/metrics"):
            assert (await server.http.get(path)).status_code == 200
        for path in ("/v1/models", "/nothing"):
            assert error_of(await server.http.get(path), 401)
