"""Chunks become tokens and times by the documented rules."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.bench.streamed_answer import FailedAnswer, MalformedAnswer, StreamedAnswer, spread_tokens


def text(value: str, finish: str | None = None, **others) -> bytes:
    return json.dumps({"choices": [{"index": 0, "text": value, "finish_reason": finish}], **others}).encode()


def delta(finish: str | None = None, **fields) -> bytes:
    return json.dumps({"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}).encode()


def usage(num_output: int, num_prompt: int = 7) -> bytes:
    return json.dumps(
        {"choices": [], "usage": {"prompt_tokens": num_prompt, "completion_tokens": num_output, "total_tokens": 99}}
    ).encode()


def answer_of(*data: bytes) -> StreamedAnswer:
    """Each event a second after the last one, from 1 s on."""
    answer = StreamedAnswer()
    for index, one in enumerate(data, start=1):
        answer.take(one, float(index))
    return answer


def test_as_many_tokens_as_chunks() -> None:
    answer = answer_of(text("a"), text("b"), text("c", "length"), usage(3), b"[DONE]")
    assert answer.arrivals() == ((1, 1), (2, 1), (3, 1))
    assert (answer.text, answer.num_prompt_tokens, answer.num_tokens, answer.done_s) == ("abc", 7, 3, 5.0)


def test_without_a_usage_a_chunk_with_text_is_a_token() -> None:
    answer = answer_of(text("a"), text(""), text("bc"), text("", "stop"), b"[DONE]")
    assert answer.arrivals() == ((1, 1), (3, 1))
    assert answer.num_tokens is None


def test_a_role_is_no_token() -> None:
    answer = answer_of(
        delta(role="assistant", content=""), delta(content="a"), delta(reasoning_content="b"), delta("stop"), usage(2)
    )
    assert answer.arrivals() == ((2, 1), (3, 1))
    assert answer.text == "ab"


def test_the_end_token_has_no_text_and_comes_with_the_finish_reason() -> None:
    answer = answer_of(text("a"), text("b"), text("", "stop"), usage(3), b"[DONE]")
    assert answer.arrivals() == ((1, 1), (2, 1), (3, 1))


def test_an_answer_of_the_end_token_alone() -> None:
    assert answer_of(text("", "stop"), usage(1)).arrivals() == ((1, 1),)


def test_tokens_that_came_together_are_spread_over_the_chunks_after_the_first() -> None:
    answer = answer_of(text("a"), text("bcd"), text("efg", "length"), usage(6))
    assert answer.arrivals() == ((1, 1), (2, 2), (3, 3))


def test_a_usage_in_each_chunk_says_what_the_chunk_holds() -> None:
    chunks = [text("abc", usage={"completion_tokens": 3}), text("d", usage={"completion_tokens": 4})]
    assert answer_of(*chunks, text("", "length", usage={"completion_tokens": 4}), usage(4)).arrivals() == (
        (1, 3),
        (2, 1),
    )


@given(st.lists(st.floats(0, 10), max_size=20).map(sorted), st.integers(0, 50))
def test_no_token_is_lost_or_made_up(times_s: list[float], num_tokens: int) -> None:
    arrivals = spread_tokens(times_s, num_tokens)
    assert sum(one.num_tokens for one in arrivals) == (num_tokens if times_s else 0)
    if arrivals:
        assert arrivals[0].at_s == times_s[0]
        assert all(one.num_tokens > 0 for one in arrivals)
        shares = [one.num_tokens for one in arrivals[1:]]
        assert max(shares, default=1) - min(shares, default=1) <= 1


@pytest.mark.parametrize(
    "data",
    [b"nonsense", b"[1]", b'{"choices": 3}', b'{"choices": [{"text": 5}]}', b'{"choices": [', b'"\xff"', b""],
    ids=str,
)
def test_a_chunk_that_is_none_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedAnswer):
        StreamedAnswer().take(data, 0.0)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'{"error": {"message": "out of memory", "code": 500}}', "out of memory"),
        (b'{"error": "overloaded", "error_type": "overloaded"}', "overloaded"),
        (b'{"object": "error", "message": "no", "code": 400}', "no"),
        (b'{"error": {}}', "without a message"),
    ],
    ids=str,
)
def test_an_error_in_the_stream_is_told(data: bytes, said: str) -> None:
    with pytest.raises(FailedAnswer, match=said):
        StreamedAnswer().take(data, 0.0)


def test_complete_is_what_was_said_to_be() -> None:
    assert not answer_of(text("a")).is_complete
    assert answer_of(text("a", "length")).is_complete
    assert answer_of(text("a"), b"[DONE]").is_complete
