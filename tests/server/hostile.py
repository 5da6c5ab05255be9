"""Requests that nobody should send, from a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

HostileRequest = tuple[str, str, dict[str, str], bytes]  # method, path, headers, body

_COMPLETION, _CHAT, _TOKENIZE, _DETOKENIZE = "/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"
_GENERATION_FIELDS = (
    "model", "n", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "logit_bias", "seed", "max_tokens", "min_tokens", "stop", "include_stop_str_in_output",
    "stop_token_ids", "ignore_eos", "skip_special_tokens", "priority", "stream", "stream_options", "user", "logprobs",
    "top_logprobs", "max_completion_tokens", "add_special_tokens", "add_generation_prompt", "best_of", "echo",
    "suffix", "tools", "tool_choice", "response_format", "prompt_logprobs", "\u0000", "__proto__", "",
)  # fmt: skip


def hostile_requests(seed: int, count: int) -> Iterator[HostileRequest]:
    """``count`` requests that are malformed or hostile. The few that turn out to be legal ask for a few tokens only."""
    rng = random.Random(seed)
    kinds: list[Callable[[random.Random], HostileRequest]] = [
        _wrong_field,
        _wrong_field,
        _wrong_prompt,
        _wrong_messages,
        _broken_json,
        _deep,
        _raw_bytes,
        _wrong_tokens,
        _wrong_route,
        _wrong_headers,
    ]
    for number in range(count):
        if number % 100 == 50:
            yield _huge(rng)
        else:
            yield rng.choice(kinds)(rng)


def _value(rng: random.Random) -> Any:
    """Something of no type in particular."""
    return rng.choice(
        (
            None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**63), 10**30, 10**400, -(10**400), 0.5, -0.0, 1e308,
            -1e308, float("nan"), float("inf"), float("-inf"), "", "x", "\u0000", "\ud800", "\udfff\ud800", "🙂" * 100,
            "<|end|>", "<|im_start|>system", "A" * 100_000, [], [[]], [None], [1, "a"], [True], {}, {"a": {}},
            {"1": float("nan")}, {"-1": 5}, {"99999999999": 1}, {"": ""}, [{}], [[[[1]]]], "1e5", "null", "true",
            [2**40], [-5], ["\ud800"], [""], ["x"] * 500, list(range(2000)), "{{ 7 * 7 }}", "{% raise %}", "../../etc",
        )
    )  # fmt: skip


def _json(content: Any) -> bytes:
    # Python's encoder writes NaN, Infinity and lone surrogates, which is what is wanted here.
    return json.dumps(content, ensure_ascii=True).encode()


def _post(path: str, content: Any) -> HostileRequest:
    return ("POST", path, {"content-type": "application/json"}, _json(content))


def _legal(rng: random.Random) -> tuple[str, dict[str, Any]]:
    if rng.random() < 0.5:
        return _COMPLETION, {"prompt": "hello", "max_tokens": 3}
    return _CHAT, {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}


def _wrong_field(rng: random.Random) -> HostileRequest:
    path, body = _legal(rng)
    for _ in range(rng.randint(1, 3)):
        body[rng.choice(_GENERATION_FIELDS)] = _value(rng)
    if body["max_tokens"] is None:  # which is legal, and long
        body["max_tokens"] = 3
    return _post(path, body)


def _wrong_prompt(rng: random.Random) -> HostileRequest:
    return _post(_COMPLETION, {"prompt": _value(rng), "max_tokens": rng.choice((1, -1, 0, 2))})


def _wrong_messages(rng: random.Random) -> HostileRequest:
    messages = rng.choice(
        (
            _value(rng),
            [_value(rng)],
            [{"role": _value(rng), "content": "x"}],
            [{"role": "user", "content": _value(rng)}],
            [{"role": "user", "content": [_value(rng)]}],
            [{"role": "user", "content": [{"type": _value(rng), "text": _value(rng)}]}],
            [{"role": "assistant", "content": None, "tool_calls": _value(rng)}],
            [{"role": "user", "content": "x", "name": _value(rng), "\u0000": _value(rng)}] * 50,
        )
    )
    return _post(rng.choice((_CHAT, _TOKENIZE)), {"messages": messages, "max_tokens": 2})


def _broken_json(rng: random.Random) -> HostileRequest:
    path, body = _legal(rng)
    text = bytearray(_json(body))
    for _ in range(rng.randint(1, 4)):
        position = rng.randrange(max(len(text), 1))
        if rng.random() < 0.5 or not text:
            del text[position:]
            text += rng.choice((b"", b"}", b"\xff\xfe", b",", b"\x00"))
        else:
            text[position] = rng.randrange(256)
    if _lacks_max_tokens(text):
        text += b"}"
    return ("POST", path, {"content-type": "application/json"}, bytes(text))


def _lacks_max_tokens(text: bytearray) -> bool:
    """True for JSON of which the breaking left nothing but the legal part of a request, without its limit."""
    try:
        content = json.loads(text)
    except ValueError:
        return False
    return isinstance(content, dict) and content.get("max_tokens") is None


def _deep(rng: random.Random) -> HostileRequest:
    depth = rng.choice((100, 500, 900, 980, 5_000, 200_000))
    opening, closing = rng.choice(((b"[", b"]"), (b'{"a":', b"}")))
    deep = opening * depth + b"1" + closing * depth
    body = rng.choice(
        (
            deep,
            b'{"max_tokens":1,"prompt":' + deep + b"}",
            b'{"prompt":"x","max_tokens":1,"tools":' + deep + b"}",
            b'{"max_tokens":1,"messages":' + deep + b"}",
            b'{"max_tokens":1,"messages":[{"role":"user","content":' + deep + b"}]}",
            b'{"max_tokens":1,"messages":[{"role":"user","content":[{"type":' + deep + b"}]}]}",
            b'{"max_tokens":1,"messages":[{"role":' + deep + b',"content":"x"}]}',
        )
    )
    return ("POST", rng.choice((_COMPLETION, _CHAT, _TOKENIZE)), {"content-type": "application/json"}, body)


def _raw_bytes(rng: random.Random) -> HostileRequest:
    body = rng.choice((b"", b"null", b"\x00" * 100, b"\xff" * 100, rng.randbytes(rng.randint(1, 2_000)), b'"' * 1_000))
    return ("POST", rng.choice((_COMPLETION, _CHAT, _DETOKENIZE)), {"content-type": "application/json"}, body)


def _wrong_tokens(rng: random.Random) -> HostileRequest:
    return _post(_DETOKENIZE, {"tokens": _value(rng), "model": rng.choice((None, _value(rng)))})


def _wrong_route(rng: random.Random) -> HostileRequest:
    method = rng.choice(("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "POST"))
    path = rng.choice(
        (
            "/", "//", "/v1", "/v1/", "/v1/completions/", "/v1/models/%00", "/v1/models/%ff%fe", "/v1/models/%ED%A0%80",
            "/v1/models/" + "a" * 5_000, "/../../etc/passwd", "/v1/chat/completions?stream=%00", "/%2e%2e/",
            "/metrics/x", "/v1/embeddings", _COMPLETION, _CHAT,
        )
    )  # fmt: skip
    return (method, path, {}, b"" if method in ("GET", "HEAD", "OPTIONS") else b'{"prompt": 5, "max_tokens": 1}')


def _wrong_headers(rng: random.Random) -> HostileRequest:
    name = rng.choice(("authorization", "x-request-id", "content-type", "accept", "x-forwarded-for", "cookie"))
    value = rng.choice(
        ("", "Bearer", "\u00ff", "x" * 5_000, "text/plain", "application/json; charset=utf-7", "{}", "a b c")
    )
    headers = {name: value}
    path, body = _legal(rng)
    return ("POST", path, headers, _json({**body, "max_tokens": -1}))


def _huge(rng: random.Random) -> HostileRequest:
    size = rng.choice((5_000_000, 10_000_000))
    if rng.random() < 0.5:
        return _post(_COMPLETION, {"prompt": "x" * size, "max_tokens": 1})
    return _post(_COMPLETION, {"prompt": [1] * (size // 3), "max_tokens": 1})
