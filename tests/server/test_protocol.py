"""What is refused at the door, without a server around it."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from inflight.core.errors import Reason, Rejected
from inflight.core.request import MAX_STOP_CHARS, MAX_STOP_STRINGS
from inflight.server.body import parse
from inflight.server.protocol import ChatCompletionRequest, CompletionRequest, TokenizeRequest

HI = [{"role": "user", "content": "hi"}]


def completion(**fields: Any) -> CompletionRequest:
    return parse(json.dumps({"prompt": "x", **fields}).encode(), CompletionRequest)


def chat(**fields: Any) -> ChatCompletionRequest:
    return parse(json.dumps({"messages": HI, **fields}).encode(), ChatCompletionRequest)


def test_stop_takes_what_the_sampling_parameters_take() -> None:
    stop = ["x" * MAX_STOP_CHARS] * MAX_STOP_STRINGS
    assert completion(stop=stop).sampling(0, 1, None).stop == tuple(stop)


def sampled(request: CompletionRequest) -> None:
    request.sampling(0, request.max_tokens, request.logprobs)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b"null",
        b'{"prompt": "x",}',
        b'{"prompt": "x", "temperature": NaN}',
        b'{"prompt": "x", "temperature": Infinity}',
        b'{"prompt": "x", "temperature": 1e999}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "\xed\xa0\x80"}',
        b'{"prompt": "\xff"}',
        b'{"prompt": "\x00"}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"n": ' + b"9" * 10_000 + b"}",
        b'\xef\xbb\xbf{"prompt": "x"}',
    ],
)
def test_a_body_that_is_no_json_object(body: bytes) -> None:
    with pytest.raises(Rejected) as refused:
        parse(body, CompletionRequest)
    assert refused.value.reason is Reason.INVALID


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", True),
        ("n", "2"),
        ("n", 1.0),
        ("n", 10**40),
        ("max_tokens", "many"),
        ("max_tokens", -(10**40)),
        ("temperature", "0.7"),
        ("temperature", True),
        ("temperature", 10**400),
        ("temperature", []),
        ("stream", "yes"),
        ("stream", 1),
        ("stop", 5),
        ("stop", ["a", 5]),
        ("stop", [""]),
        ("stop", ["x" * 10_000]),
        ("stop", ["x"] * 65),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", ["1"]),
        ("stop_token_ids", [1] * 1025),
        ("logit_bias", [1]),
        ("logit_bias", {"a": 1}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {"9" * 5000: 1}),
        ("logit_bias", {"\u0661": 1}),
        ("logit_bias", {"1": "1"}),
        ("logit_bias", {"1": True}),
        ("logit_bias", {"1": 101}),
        ("seed", 1.5),
        ("model", 7),
        ("stream_options", {"include_usage": True}),  # without stream
        ("stream_options", []),
        ("prompt", 5),
        ("prompt", {"a": 1}),
        ("prompt", ["x", 5]),
        ("prompt", [1, True]),
        ("prompt", [1, 2.0]),
        ("prompt", [[1], [True]]),
        ("prompt", ["x"] * 129),
        ("prompt", None),
    ],
)
def test_a_wrong_field_is_named(field: str, value: Any) -> None:
    with pytest.raises(Rejected) as refused:
        completion(**{field: value})
    assert refused.value.reason is Reason.INVALID
    assert field in refused.value.message
    assert refused.value.param is None or refused.value.param.startswith(field)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0),
        ("n", 2**63),
        ("temperature", -0.1),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_k", -2),
        ("min_p", 2.0),
        ("presence_penalty", 3.0),
        ("repetition_penalty", 0.0),
        ("logprobs", 21),
        ("max_tokens", 0),
        ("max_tokens", -5),
        ("min_tokens", -1),
    ],
)
def test_a_field_out_of_range_is_named(field: str, value: Any) -> None:
    with pytest.raises(Rejected) as refused:
        sampled(completion(**{field: value}))
    assert refused.value.param == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function"}]),
        ("tool_choice", "required"),
        ("functions", [{"name": "f"}]),
        ("response_format", {"type": "json_object"}),
        ("echo", True),
        ("suffix", "end"),
        ("best_of", 3),
        ("audio", {"voice": "x"}),
        ("modalities", ["text", "audio"]),
        ("prompt_logprobs", 0),
        ("use_beam_search", True),
        ("guided_json", {}),
        ("truncate_prompt_tokens", 5),
    ],
)
def test_what_is_known_and_not_built_is_said_to_be_so(field: str, value: Any) -> None:
    for make in (completion, chat):
        with pytest.raises(Rejected, match="not supported yet") as refused:
            make(**{field: value})
        assert refused.value.param == field


def test_what_asks_for_nothing_is_taken() -> None:
    nothing = {
        "tools": [],
        "tool_choice": "auto",
        "response_format": {"type": "text"},
        "echo": False,
        "suffix": "",
        "best_of": 2,
        "n": 2,
        "modalities": ["text"],
        "audio": None,
    }
    assert completion(**nothing).n == 2
    assert chat(**nothing, top_logprobs=None).n == 2


def test_unknown_fields_are_ignored() -> None:
    assert completion(anything={"deep": [1]}) == completion()


@pytest.mark.parametrize(
    "messages",
    [
        [],
        "hi",
        [5],
        [{}],
        [{"role": "user"}],
        [{"role": "pirate", "content": "x"}],
        [{"role": "tool", "content": "x", "tool_call_id": "1"}],
        [{"role": 5, "content": "x"}],
        [{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}],
    ],
)
def test_messages_that_are_refused(messages: Any) -> None:
    with pytest.raises(Rejected) as refused:
        chat(messages=messages)
    assert refused.value.param is not None
    assert refused.value.param.startswith("messages")


class Untouchable(list[int]):
    """A list that must not be looked into."""

    def __iter__(self) -> Any:
        raise AssertionError("looked into")


def test_lengths_are_checked_before_elements() -> None:
    with pytest.raises(ValidationError, match="at most 128"):
        CompletionRequest.model_validate({"prompt": [Untouchable()] * 129})
    assert len(completion(prompt=[1] * 129).prompt) == 1
    with pytest.raises(Rejected, match="2048"):
        chat(messages=HI * 2049)
    assert len(chat(messages=HI * 2048).messages) == 2048
    with pytest.raises(Rejected, match="at most 1024"):
        completion(logit_bias={"x": 1, **{str(token_id): 1 for token_id in range(1024)}})
    assert len(completion(logit_bias={str(token_id): 1 for token_id in range(1024)}).logit_bias) == 1024


def test_top_logprobs_need_logprobs() -> None:
    with pytest.raises(Rejected, match="top_logprobs"):
        chat(top_logprobs=2)
    assert chat(top_logprobs=2, logprobs=True).top_logprobs == 2


def test_tokenize_takes_a_prompt_or_messages() -> None:
    for body in (b"{}", b'{"prompt": "x", "messages": [{"role": "user", "content": "x"}]}'):
        with pytest.raises(Rejected, match="exactly one"):
            parse(body, TokenizeRequest)
