"""Whatever a server does, a call ends with an outcome; each way to fail has its name."""

import asyncio
import gzip
import socket
import time

import httpx
import pytest

from bench.bad_server import (
    CHUNKED_HEAD,
    HEAD,
    BadServer,
    answers,
    bad_server,
    event,
    hangs,
    in_loop,
    sends,
    token,
    whole,
)
from inflight.bench.endpoint import CHAT, Endpoint, Form, first_model, probed
from inflight.bench.outcome import ErrorKind, Outcome
from inflight.core.errors import InflightError
from inflight.workload.item import WorkItem

ITEM = WorkItem("item", (1, 2, 3), 2)


async def call(endpoint: Endpoint) -> Outcome:
    async with endpoint.connect() as http:
        now_s = time.monotonic()
        return await endpoint.call(http, ITEM, now_s, now_s)


@in_loop
async def test_a_good_answer() -> None:
    async with bad_server(answers) as server:
        outcome = await call(server.endpoint(extra_body={"temperature": 0.5, "best_of": 2}))
    assert outcome.error is None
    assert (outcome.text, outcome.num_output_tokens, outcome.num_prompt_tokens, outcome.counted) == ("xx", 2, 3, True)
    assert outcome.scheduled_s <= outcome.due_s <= outcome.sent_s <= outcome.arrivals[0].at_s <= outcome.end_s
    assert server.bodies == [
        {
            "model": "m",
            "prompt": [1, 2, 3],
            "max_tokens": 2,
            "temperature": 0.5,
            "stream": True,
            "ignore_eos": True,
            "stream_options": {"include_usage": True},
            "best_of": 2,
        }
    ]


@in_loop
async def test_a_chat_is_asked_in_text() -> None:
    async with bad_server(answers) as server:
        await call(server.endpoint(path=CHAT, form=Form(token_ids=False, ignore_eos=False, usage=False)))
    assert server.bodies[0] == {
        "model": "m",
        "messages": [{"role": "user", "content": "(1, 2, 3)"}],
        "max_tokens": 2,
        "temperature": 0.0,
        "stream": True,
    }


BUSY = b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: 4\r\nConnection: close\r\n\r\nfull"
MOVED = b"HTTP/1.1 302 Found\r\nLocation: http://elsewhere/\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
GZIPPED_HEAD = HEAD.replace(b"Connection:", b"Content-Encoding: gzip\r\nConnection:")
NOT_EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"


@pytest.mark.parametrize(
    ("pieces", "kind", "said", "num_tokens"),
    [
        ((BUSY,), ErrorKind.HTTP_STATUS, "503 (Retry-After: 7): full", 0),
        ((), ErrorKind.CONNECTION, "Error", 0),
        ((HEAD, token("x")), ErrorKind.BROKEN_STREAM, "ended before", 1),
        ((HEAD,), ErrorKind.BROKEN_STREAM, "ended before", 0),
        ((CHUNKED_HEAD, b"5\r\ndata:"), ErrorKind.BROKEN_STREAM, "Error", 0),
        ((HEAD, token("x"), b"data: \x00garbage\n\n"), ErrorKind.MALFORMED, "garbage", 1),
        ((HEAD, b"garbage without a line end"), ErrorKind.BROKEN_STREAM, "ended before", 0),
        ((NOT_EVENTS,), ErrorKind.MALFORMED, "text/html", 0),
        ((MOVED,), ErrorKind.HTTP_STATUS, "302 (Location: http://elsewhere/): ", 0),
        ((HEAD, token("x"), *[b"x" * 2**16] * 160), ErrorKind.BROKEN_STREAM, "ended before", 1),
        ((HEAD, b'data: {"error":' + b"[" * 100_000 + b"\n\n"), ErrorKind.MALFORMED, "recursion", 0),
        ((HEAD, event(usage={"completion_tokens": -1})), ErrorKind.MALFORMED, ">= 0", 0),
        ((GZIPPED_HEAD, token("x")), ErrorKind.BROKEN_STREAM, "DecodingError", 0),
        ((b"\x00\x01garbage\r\n\r\n",), ErrorKind.CONNECTION, "Error", 0),
        ((HEAD, token("x"), event(error={"message": "out of memory"})), ErrorKind.FAILED, "out of memory", 1),
    ],
    ids=[
        "refuses", "hangs up", "closes mid-stream", "closes after the head", "cuts a chunk", "garbage in an event",
        "garbage in the stream", "no stream", "moved", "a line without an end", "an event without a bottom",
        "fewer tokens than none", "not gzip", "garbage for a head", "fails mid-stream",
    ],
)  # fmt: skip
def test_each_way_to_fail_has_its_name(pieces, kind: ErrorKind, said: str, num_tokens: int) -> None:
    @in_loop
    async def run() -> None:
        async with bad_server(sends(*pieces)) as server:
            outcome = await call(server.endpoint())
        assert outcome.error is not None
        assert outcome.error.kind is kind
        assert said in outcome.error.message
        assert outcome.num_output_tokens == num_tokens

    run()


@pytest.mark.parametrize(
    "sent",
    [HEAD.replace(b"HTTP/1.1", b"HTTP/1.0") + whole(2), GZIPPED_HEAD + gzip.compress(whole(2))],
    ids=["HTTP/1.0", "gzip"],
)
def test_an_old_or_a_packed_answer_is_read(sent: bytes) -> None:
    @in_loop
    async def run() -> None:
        async with bad_server(sends(sent)) as server:
            outcome = await call(server.endpoint())
        assert (outcome.error, outcome.text, outcome.num_output_tokens) == (None, "xx", 2)

    run()


def says(content: bytes, status: bytes = b"200 OK"):
    return sends(b"HTTP/1.1 %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (status, len(content), content))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b'{"data": [{"id": "m", "max_model_len": 64}]}', ("m", 64)),
        (b'{"data": [{"id": "m"}, {"id": "n"}]}', ("m", None)),
        (b'{"data": [{"id": "m", "max_model_len": 0}]}', ("m", None)),
        (b'{"data": [{"id": "m", "max_model_len": "64"}]}', ("m", None)),
    ],
    ids=str,
)
def test_the_first_model_is_asked_for(content: bytes, told: tuple[str, int | None]) -> None:
    @in_loop
    async def run() -> None:
        async with bad_server(says(content)) as server:
            assert await first_model(server.url, None) == told

    run()


@pytest.mark.parametrize(
    "content", [b"<html>", b"[1]", b"{}", b'{"data": []}', b'{"data": "x"}', b"\xff\xfe", b"[" * 100_000, b""], ids=len
)
def test_what_names_no_model_is_told(content: bytes) -> None:
    @in_loop
    async def run() -> None:
        async with bad_server(says(content)) as server:
            with pytest.raises(InflightError, match="names no model"):
                await first_model(server.url, None)
        async with bad_server(says(content, b"302 Found")) as server:
            with pytest.raises(InflightError, match="answers with 302"):
                await first_model(server.url, None)

    run()


@in_loop
async def test_nobody_listens() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        outcome = await call(BadServer(f"http://127.0.0.1:{closed.getsockname()[1]}").endpoint())
    assert outcome.error is not None
    assert outcome.error.kind is ErrorKind.CONNECTION


@in_loop
async def test_a_server_that_hangs_is_a_timeout_and_keeps_what_came() -> None:
    async with bad_server(hangs) as server:
        outcome = await call(server.endpoint(timeout_s=0.2))
    assert outcome.error == (ErrorKind.TIMEOUT, "not complete after 0.2 s")
    assert outcome.num_output_tokens == 1
    assert outcome.e2el_s >= 0.2


@in_loop
async def test_what_breaks_after_the_end_does_not_count() -> None:
    whole_answer = whole(2)
    async with bad_server(sends(CHUNKED_HEAD, b"%x\r\n%s\r\nff\r\nrest" % (len(whole_answer), whole_answer))) as server:
        outcome = await call(server.endpoint())
    assert outcome.error is None
    assert outcome.num_output_tokens == 2


@in_loop
async def test_bytes_that_come_one_by_one_are_the_same_answer() -> None:
    stream = whole(3).replace(b"\n", b"\r\n").replace(b'"x"', '"é€😀"'.encode())
    async with bad_server(sends(HEAD, *(stream[index : index + 1] for index in range(len(stream))))) as server:
        outcome = await call(server.endpoint())
    assert outcome.error is None
    assert outcome.text == "é€😀" * 3


@in_loop
async def test_a_key_is_sent_and_never_shown() -> None:
    endpoint = BadServer("http://127.0.0.1:1").endpoint(api_key="secret")
    assert "secret" not in repr(endpoint)
    async with endpoint.connect() as http:
        assert isinstance(http, httpx.AsyncClient)
        assert http.headers["authorization"] == "Bearer secret"


def refuses(*fields: str, ids: bool = False):
    """A server that does not know these fields, nor, with ``ids``, prompts as token ids."""

    async def behave(body: dict, writer: asyncio.StreamWriter) -> None:
        if any(field in body for field in fields) or (ids and isinstance(body.get("prompt"), list)):
            writer.write(b"HTTP/1.1 400 Bad\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
        else:
            await answers(body, writer)

    return behave


@pytest.mark.parametrize(
    ("behaviour", "form", "num_asked"),
    [
        (answers, Form(), 1),
        (refuses(ids=True), Form(token_ids=False), 2),
        (refuses("ignore_eos"), Form(ignore_eos=False), 3),
        (refuses("ignore_eos", ids=True), Form(token_ids=False, ignore_eos=False), 4),
        (refuses("ignore_eos", "stream_options", ids=True), Form(False, False, False), 5),
        (sends(HEAD + whole(1, num_prompt_tokens=9)), Form(token_ids=False), 2),  # it took the ids for a text
    ],
    ids=["all", "text", "no ignore_eos", "text, no ignore_eos", "nothing", "ids as text"],
)
def test_the_probe_finds_what_a_server_takes(behaviour, form: Form, num_asked: int) -> None:
    @in_loop
    async def run() -> None:
        async with bad_server(behaviour) as server:
            assert (await probed(server.endpoint(), ITEM)).form == form
            assert len(server.bodies) == num_asked
            assert {body["max_tokens"] for body in server.bodies} == {1}

    run()


@pytest.mark.parametrize(
    ("behaviour", "named"),
    [(refuses("model"), "takes no form of request: 400: no"), (sends(), "connection"), (sends(HEAD), "broken_stream")],
    ids=["refuses all", "hangs up", "breaks"],
)
def test_a_server_that_cannot_be_used_is_named(behaviour, named: str) -> None:
    @in_loop
    async def run() -> None:
        async with bad_server(behaviour) as server:
            with pytest.raises(InflightError, match=named) as error:
                await probed(server.endpoint(), ITEM)
            assert server.url in str(error.value)

    run()
