"""What a caller asked for, frozen: ``SamplingParams`` and ``Request``.

Names, defaults and ranges are those of vLLM's ``SamplingParams`` and of the OpenAI API.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How each next token is drawn, and when a sequence ends.

    Lists are accepted where tuples are declared, and a mapping for ``logit_bias``; all are frozen here.
    Raises ``Rejected`` (reason ``INVALID``, with the field's name as ``param``) for a value out of range.
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
        put(self, "stop_token_ids", tuple(self.stop_token_ids or ()))
        bias = self.logit_bias or ()
        put(self, "logit_bias", tuple(sorted(bias.items() if isinstance(bias, Mapping) else bias)))
        put(self, "top_k", 0 if self.top_k == -1 else self.top_k)
        _in_range("n", self.n, 1, MAX_CHOICES)
        _in_range("temperature", self.temperature, 0.0, 100.0)
        _in_range("top_p", self.top_p, 0.0, 1.0, low_open=True)
        _in_range("top_k", self.top_k, 0, 2**31)
        _in_range("min_p", self.min_p, 0.0, 1.0)
        _in_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _in_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _in_range("repetition_penalty", self.repetition_penalty, 0.0, 100.0, low_open=True)
        for _, bias_value in self.logit_bias:
            _in_range("logit_bias", bias_value, -100.0, 100.0)
        if self.seed is not None:
            _in_range("seed", self.seed, -(2**63), MAX_SEED)
        if self.logprobs is not None:
            _in_range("logprobs", self.logprobs, 0, MAX_TOP_LOGPROBS)
        if self.max_tokens is not None:
            _in_range("max_tokens", self.max_tokens, 1, 2**31)
        _in_range("min_tokens", self.min_tokens, 0, 2**31 if self.max_tokens is None else self.max_tokens)
        if len(self.stop) > MAX_STOP_STRINGS or any(not 0 < len(text) <= MAX_STOP_CHARS for text in self.stop):
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
    first, as in vLLM. Raises ``Rejected`` for an empty prompt or a priority out of range.
    """

    request_id: RequestId
    prompt_token_ids: tuple[TokenId, ...]
    sampling: SamplingParams
    eos_token_ids: tuple[TokenId, ...] = ()
    priority: int = 0
    arrival_s: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt_token_ids", tuple(self.prompt_token_ids))
        if not self.prompt_token_ids:
            raise Rejected(Reason.INVALID, "the prompt is empty: it has no tokens", "prompt")
        _in_range("priority", self.priority, -PRIORITY_LIMIT, PRIORITY_LIMIT - 1)

    def check_token_ids(self, vocab_size: int) -> None:
        """Raise ``Rejected`` if any token id of the request lies outside ``[0, vocab_size)``."""
        _in_vocab("prompt", self.prompt_token_ids, vocab_size)
        _in_vocab("stop_token_ids", self.sampling.stop_token_ids, vocab_size)
        _in_vocab("logit_bias", [token_id for token_id, _ in self.sampling.logit_bias], vocab_size)


def _in_range(name: str, value: float, low: float, high: float, low_open: bool = False) -> None:
    # Written so that NaN, which compares false with everything, is refused.
    if not (low <= value <= high and not (low_open and value == low)):
        bracket = "(" if low_open else "["
        raise Rejected(Reason.INVALID, f"{name} must be in {bracket}{low}, {high}], got {value}", name)


def _in_vocab(name: str, token_ids: Sequence[TokenId], vocab_size: int) -> None:
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise Rejected(
                Reason.INVALID, f"{name} holds token id {token_id}; the vocabulary is [0, {vocab_size})", name
            )
