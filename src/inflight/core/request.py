"""What a caller asked for, frozen: ``SamplingParams`` and ``Request``.

Names, defaults and ranges are those of vLLM's ``SamplingParams`` and of the OpenAI API.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, NamedTuple

from inflight.core.errors import Reason, Rejected

RequestId = str
SeqId = tuple[RequestId, int]  # (request, choice): n > 1 makes several sequences of one request
TokenId = int

MAX_CHOICES = 128
MAX_TOP_LOGPROBS = 20
MAX_STOP_STRINGS = 64
MAX_STOP_CHARS = 1024
MAX_SEED = 2**64 - 1
PRIORITY_LIMIT = 2**31


class _Range(NamedTuple):
    """The numbers that a field takes."""

    kind: type
    low: float
    high: float
    low_open: bool = False

    def number(self, name: str, value: Any) -> Any:
        """``value`` as a plain number. Raises ``Rejected``, naming the field, if it is none or out of range."""
        if isinstance(value, bool) or not isinstance(value, Integral if self.kind is int else Real):
            what = "a whole number" if self.kind is int else "a number"
            raise Rejected(Reason.INVALID, f"{name} must be {what}, got {value!r}", name)
        number: Any = value  # an integer is compared as it is: it may be too large for a float
        # Written so that NaN, which compares false with everything, is refused.
        if not (self.low <= number <= self.high and not (self.low_open and number == self.low)):
            bracket = "(" if self.low_open else "["
            raise Rejected(Reason.INVALID, f"{name} must be in {bracket}{self.low}, {self.high}], got {value}", name)
        return self.kind(value)


_RANGES = {
    "n": _Range(int, 1, MAX_CHOICES),
    "temperature": _Range(float, 0.0, 100.0),
    "top_p": _Range(float, 0.0, 1.0, low_open=True),
    "top_k": _Range(int, 0, 2**31),
    "min_p": _Range(float, 0.0, 1.0),
    "presence_penalty": _Range(float, -2.0, 2.0),
    "frequency_penalty": _Range(float, -2.0, 2.0),
    "repetition_penalty": _Range(float, 0.0, 100.0, low_open=True),
    "seed": _Range(int, -(2**63), MAX_SEED),
    "logprobs": _Range(int, 0, MAX_TOP_LOGPROBS),
    "max_tokens": _Range(int, 1, 2**31),
    "min_tokens": _Range(int, 0, 2**31),
}
_OPTIONAL = ("seed", "logprobs", "max_tokens")
_BIAS = _Range(float, -100.0, 100.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How each next token is drawn, and when a sequence ends.

    Lists are accepted where tuples are declared, a mapping for ``logit_bias``, and numpy's numbers; all become plain
    and frozen here. Raises ``Rejected`` (reason ``INVALID``, with the field's name as ``param``) for a value of a wrong
    type or out of range.
    """

    n: int = 1
    temperature: float = 1.0  # 0 = greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 or -1 = the whole vocabulary
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[TokenId, float], ...] = ()
    seed: int | None = None  # None: the executor derives one from the request's id
    logprobs: int | None = None  # how many alternatives beside the sampled token's own logprob
    max_tokens: int | None = 16  # new tokens; None = up to the effective max_model_len
    min_tokens: int = 0  # no end token and no stop before so many new tokens
    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    stop_token_ids: tuple[TokenId, ...] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ()))
        put(
            self,
            "stop_token_ids",
            _token_ids("stop_token_ids", self.stop_token_ids),
        )
        put(self, "logit_bias", _bias(self.logit_bias or ()))
        put(self, "top_k", 0 if self.top_k == -1 else self.top_k)
        for name, allowed in _RANGES.items():
            value = getattr(self, name)
            if value is not None or name not in _OPTIONAL:
                put(self, name, allowed.number(name, value))
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise Rejected(
                Reason.INVALID, f"min_tokens is {self.min_tokens}, above max_tokens {self.max_tokens}", "min_tokens"
            )
        if len(self.stop) > MAX_STOP_STRINGS or not all(_is_stop(text) for text in self.stop):
            raise Rejected(
                Reason.INVALID,
                f"stop takes at most {MAX_STOP_STRINGS} strings of 1 to {MAX_STOP_CHARS} characters",
                "stop",
            )

    @property
    def greedy(self) -> bool:
        """True where the most likely token is always taken."""
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call, as the engine sees it: token ids in, ``sampling.n`` sequences out.

    ``arrival_s`` is when the whole request had been received, on the engine's clock. Lower ``priority`` is served
    first, as in vLLM. Stored keys and values are shared between requests of the same ``cache_salt`` alone. Raises
    ``Rejected`` for an empty prompt, a priority out of range, or a salt that is no text.
    """

    request_id: RequestId
    prompt_token_ids: tuple[TokenId, ...]
    sampling: SamplingParams
    eos_token_ids: tuple[TokenId, ...] = ()
    priority: int = 0
    arrival_s: float = 0.0
    cache_salt: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt_token_ids", _token_ids("prompt", self.prompt_token_ids))
        if not self.prompt_token_ids:
            raise Rejected(Reason.INVALID, "the prompt is empty: it has no tokens", "prompt")
        _Range(int, -PRIORITY_LIMIT, PRIORITY_LIMIT - 1).number("priority", self.priority)
        if not isinstance(self.cache_salt, str) or not _is_unicode(self.cache_salt):
            raise Rejected(Reason.INVALID, f"cache_salt must be text, got {self.cache_salt!r}", "cache_salt")

    def check_token_ids(self, vocab_size: int) -> None:
        """Raise ``Rejected`` if any token id of the request lies outside ``[0, vocab_size)``."""
        _in_vocab("prompt", self.prompt_token_ids, vocab_size)
        _in_vocab("stop_token_ids", self.sampling.stop_token_ids, vocab_size)
        _in_vocab("logit_bias", [token_id for token_id, _ in self.sampling.logit_bias], vocab_size)


def _token_ids(name: str, token_ids: Iterable[TokenId] | None) -> tuple[TokenId, ...]:
    try:
        return tuple(map(operator.index, () if token_ids is None else token_ids))
    except TypeError as error:
        raise Rejected(Reason.INVALID, f"{name} must be token ids, which are whole numbers: {error}", name) from None


def _bias(bias: Mapping[TokenId, float] | Iterable[tuple[TokenId, float]]) -> tuple[tuple[TokenId, float], ...]:
    pairs = tuple(bias.items() if isinstance(bias, Mapping) else bias)
    token_ids = _token_ids("logit_bias", [token_id for token_id, _ in pairs])
    values = [_BIAS.number("logit_bias", value) for _, value in pairs]
    return tuple(sorted(zip(token_ids, values, strict=True)))


def _is_unicode(text: str) -> bool:
    """Whether UTF-8 can hold it: half of a surrogate pair, which Python's strings may hold, is no character."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _is_stop(text: str) -> bool:
    return isinstance(text, str) and 0 < len(text) <= MAX_STOP_CHARS


def _in_vocab(name: str, token_ids: Sequence[TokenId], vocab_size: int) -> None:
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise Rejected(
                Reason.INVALID, f"{name} holds token id {token_id}; the vocabulary is [0, {vocab_size})", name
            )
