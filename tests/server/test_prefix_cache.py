"""Who may share keys and values with whom, and what answers say about it."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.core.request import Request
from inflight.server.namespace import Namespace
from server.fake_client import fixed_reply
from server.live import Live, in_loop, live

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
BODIES = {COMPLETIONS: {"prompt": "abc"}, CHAT: {"messages": [{"role": "user", "content": "abc"}]}}
SECRET = bytes(32)


async def salt_of(server: Live, path: str = COMPLETIONS, key: str | None = None, **body: object) -> str:
    """The salt that reaches the engine."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    answer = await server.post(path, BODIES[path] | body, headers=headers)
    assert answer.status_code == 200, answer.text
    return server.client.requests[-1].cache_salt


@in_loop
async def test_without_keys_everybody_shares_but_for_those_with_a_salt() -> None:
    async with live() as server:
        plain = await salt_of(server)
        assert plain == await salt_of(server, CHAT) == await salt_of(server, cache_salt=None)
        assert plain == await salt_of(server, key="whatever")  # nobody asked for it
        mine = await salt_of(server, cache_salt="mine")
        assert mine == await salt_of(server, CHAT, cache_salt="mine")
        assert len({plain, mine, await salt_of(server, cache_salt="yours")}) == 3


@in_loop
async def test_two_keys_never_share_whatever_their_salts(caplog: pytest.LogCaptureFixture) -> None:
    async with live(api_key=("alice-key", "bob-key")) as server:
        with caplog.at_level(logging.DEBUG):
            seen = {
                (key, salt): await salt_of(server, key=key, cache_salt=salt)
                for key in ("alice-key", "bob-key")
                for salt in (None, "s", "bob-key", "alice-key")
            }
        assert len(set(seen.values())) == len(seen)
        assert seen["bob-key", "s"] == await salt_of(server, CHAT, key="bob-key", cache_salt="s")
        for secret in ("alice-key", "bob-key"):
            assert secret not in repr(server.client.requests)
            assert secret not in caplog.text


@in_loop
async def test_another_process_has_other_salts() -> None:
    async with live() as first, live() as second:
        assert await salt_of(first, cache_salt="mine") != await salt_of(second, cache_salt="mine")


@given(st.lists(st.tuples(st.binary(max_size=4), st.text("ab\x00", max_size=4)), unique=True, min_size=2, max_size=20))
def test_no_key_and_salt_read_like_another_key_and_salt(pairs: list[tuple[bytes, str]]) -> None:
    salts = {Namespace(SECRET, key).cache_salt(salt) for key, salt in pairs}
    assert len(salts) == len(pairs)


@in_loop
async def test_the_secret_is_part_of_it_and_the_key_is_not_kept() -> None:
    one, other = Namespace(SECRET, b"key"), Namespace(b"\x01" * 32, b"key")
    assert one.cache_salt("") == one.cache_salt("") != other.cache_salt("")
    assert not any(b"key" in bytes(repr(value), "utf-8") for value in vars(one).values())


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("salt", ["", 5, ["a"], {"a": 1}, True, "x" * 1025])
@in_loop
async def test_salts_that_are_none(path: str, salt: object) -> None:
    async with live() as server:
        answer = await server.post(path, BODIES[path] | {"cache_salt": salt})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "cache_salt"


def usage_of(num_prompt: int, num_output: int, num_cached: int) -> dict:
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "total_tokens": num_prompt + num_output,
        "prompt_tokens_details": {"cached_tokens": num_cached},
    }


@in_loop
async def test_the_usage_says_what_was_cached() -> None:
    async with live(fixed_reply("hé")) as server:
        server.client.num_cached_tokens = lambda request, choice: 2
        assert (await server.post(COMPLETIONS, {"prompt": "abc"})).json()["usage"] == usage_of(3, 4, 2)
        chunks = await server.chunks(COMPLETIONS, {"prompt": "abc", "stream_options": {"include_usage": True}})
        assert [chunk["usage"] for chunk in chunks] == [None, None, None, usage_of(3, 4, 2)]
        options = {"include_usage": True, "continuous_usage_stats": True}
        chunks = await server.chunks(CHAT, {**BODIES[CHAT], "stream_options": options})
        assert {chunk["usage"]["prompt_tokens_details"]["cached_tokens"] for chunk in chunks} == {2}
        whole = await server.openai.chat.completions.create(model="fake-model", **BODIES[CHAT])
        assert whole.usage.prompt_tokens_details.cached_tokens == 2


def by_prompt(request: Request, choice: int) -> int:
    """More for each later choice, which shares its prompt with the first one."""
    return len(request.prompt_token_ids) - 1 + 100 * choice


@in_loop
async def test_of_several_choices_the_first_one_counts_and_of_several_prompts_the_sum() -> None:
    async with live(fixed_reply("hi")) as server:
        server.client.num_cached_tokens = by_prompt
        body = {"prompt": ["ab", "abcd", [1, 2, 3]], "n": 2}
        expected = usage_of(9, 18, 1 + 3 + 2)
        assert (await server.post(COMPLETIONS, body)).json()["usage"] == expected
        chunks = await server.chunks(COMPLETIONS, {**body, "stream_options": {"include_usage": True}})
        assert chunks[-1]["usage"] == expected
