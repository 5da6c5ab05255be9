"""Where prompts are tokenised, and against which limit they are checked."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from inflight.core.errors import Reason, Rejected
from inflight.server.prompts import PromptReader
from server.byte_tokenizer import byte_tokenizer
from server.fake_client import INFO, FakeClient
from server.live import in_loop, live

Encode = Callable[[PromptReader], Coroutine[Any, Any, Any]]
CHAT = [{"role": "user", "content": "x" * 1_000}]


def threads_of(encode: Encode) -> set[str]:
    """The names of the threads that tokenised."""
    tokenizer, names = byte_tokenizer(), set()
    real = tokenizer.encode

    def spy(*args: Any) -> list[int]:
        names.add(threading.current_thread().name.split("_")[0])
        return real(*args)

    tokenizer.encode = spy  # type: ignore[method-assign]

    async def main() -> None:
        reader = PromptReader(tokenizer, FakeClient())
        try:
            await encode(reader)
        finally:
            reader.close()

    asyncio.run(main())
    return names


@pytest.mark.parametrize(
    ("encode", "thread"),
    [
        (lambda reader: reader.encode("x" * 2_000, True), "MainThread"),
        (lambda reader: reader.encode("x" * 2_001, True), "tokenize"),
        (lambda reader: reader.encode_all(["x" * 10] * 128, True), "MainThread"),
        (lambda reader: reader.encode_all(["x", [1] * 10_000], True), "MainThread"),
        (lambda reader: reader.encode_all(["x" * 1_000] * 128, True), "tokenize"),
        (lambda reader: reader.encode_chat(CHAT, True, False), "MainThread"),
        (lambda reader: reader.encode_chat(CHAT * 3, True, False), "tokenize"),
    ],
)
def test_what_is_long_as_a_whole_leaves_the_event_loop_alone(encode: Encode, thread: str) -> None:
    assert threads_of(encode) == {thread}


@pytest.mark.parametrize("num_chars", [1, 3_000])
@in_loop
async def test_prompts_keep_their_order_and_token_ids_are_taken_as_they_are(num_chars: int) -> None:
    reader = PromptReader(byte_tokenizer(), FakeClient())
    got = await reader.encode_all(["a" * num_chars, [7, 8], "b"], True)
    assert got == [[97] * num_chars, [7, 8], [98]]
    with pytest.raises(Rejected) as no:
        await reader.encode_all(["a" * num_chars, ""], True)
    assert (no.value.reason, no.value.param) == (Reason.INVALID, "prompt")
    reader.close()


@in_loop
async def test_the_limit_is_that_of_the_engine_that_runs_now() -> None:
    async with live() as server:
        body = {"prompt": "x" * 30, "max_tokens": 1}
        assert (await server.post("/v1/completions", body)).status_code == 200
        server.client.info = replace(INFO, max_model_len=20)
        error = (await server.post("/v1/completions", body)).json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert "can have 20 tokens" in error["message"]
