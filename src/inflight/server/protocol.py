"""What callers may send: the fields of the OpenAI API that are built, and vLLM's beside them.

A field that is null is absent. A field that is known but not built yet is refused unless its value asks for nothing;
fields that nobody knows are ignored, as in vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    PlainValidator,
    field_validator,
    model_validator,
)

from inflight.core.request import MAX_STOP_CHARS, MAX_STOP_STRINGS, SamplingParams, TokenId
from inflight.server.not_built import refuse_not_built

MAX_PROMPTS = 128
MAX_MESSAGES = 2048
MAX_LOGIT_BIAS = 1024
MAX_STOP_TOKEN_IDS = 1024
MAX_CACHE_SALT_CHARS = 1024

Int = Annotated[int, Field(ge=-(2**63), le=2**64 - 1)]
TokenIds = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], FailFast()]
StopStrings = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]],
    FailFast(),
    Field(max_length=MAX_STOP_STRINGS),
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
]
CacheSalt = Annotated[str, Field(min_length=1, max_length=MAX_CACHE_SALT_CHARS)]


class Model(BaseModel):
    """The base of every request: strict types, finite numbers, null means absent."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="ignore", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        return {key: value for key, value in data.items() if value is not None} if isinstance(data, dict) else data


class StreamOptions(Model):
    """With ``stream``: whether a last chunk carries the usage, and each one before it the usage so far, as in vLLM."""

    include_usage: bool = False
    continuous_usage_stats: bool = False  # only with include_usage


class GenerationRequest(Model):
    """The fields that completions and chat completions share."""

    model: str | None = None
    n: Int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: Int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[TokenId, float] = Field(default_factory=dict)
    seed: Int | None = None
    max_tokens: Int | None = None
    min_tokens: Int = 0
    stop: StopStrings = Field(default_factory=list)
    include_stop_str_in_output: bool = False
    stop_token_ids: Annotated[TokenIds, Field(max_length=MAX_STOP_TOKEN_IDS)] = Field(default_factory=list)
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    priority: Int = 0
    cache_salt: CacheSalt | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = None  # ignored

    @model_validator(mode="before")
    @classmethod
    def _refuse_not_built(cls, data: Any) -> Any:
        if isinstance(data, dict):
            refuse_not_built(data)
        return data

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _token_ids_as_keys(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if len(value) > MAX_LOGIT_BIAS:
            raise ValueError(f"at most {MAX_LOGIT_BIAS} tokens can be biased, got {len(value)}")
        bias: dict[TokenId, float] = {}
        for key, number in value.items():
            if not (isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) <= 10):
                raise ValueError("the keys must be token ids, as strings of digits")
            if isinstance(number, bool) or not isinstance(number, int | float) or not -100 <= number <= 100:
                raise ValueError("the values must be numbers in [-100, 100]")
            bias[int(key)] = float(number)
        return bias

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is allowed with stream: true only")
        return self

    @property
    def usage_in_stream(self) -> StreamOptions:
        """Which chunks of a stream carry the usage."""
        return self.stream_options or StreamOptions()

    def sampling(self, seed: int, max_tokens: int | None, logprobs: int | None) -> SamplingParams:
        """The sampling parameters; ``seed`` is for a request without one. Raises ``Rejected``."""
        return SamplingParams(
            n=self.n,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=tuple(self.logit_bias.items()),
            seed=seed if self.seed is None else self.seed,
            logprobs=logprobs,
            max_tokens=max_tokens,
            min_tokens=self.min_tokens,
            stop=tuple(self.stop),
            include_stop_str_in_output=self.include_stop_str_in_output,
            stop_token_ids=tuple(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
            skip_special_tokens=self.skip_special_tokens,
        )


def _is_token_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(token_id) is int for token_id in value)


def _as_prompts(value: Any) -> list[str | list[TokenId]]:
    # Lengths come first: to look at millions of lists takes long.
    if isinstance(value, list) and len(value) > MAX_PROMPTS and type(value[0]) is not int:
        raise ValueError(f"at most {MAX_PROMPTS} prompts are taken at once, got {len(value)}")
    if isinstance(value, str) or _is_token_ids(value):
        return [value]
    if not isinstance(value, list) or not all(isinstance(one, str) or _is_token_ids(one) for one in value):
        raise ValueError("must be a text, a list of texts, a list of token ids, or a list of such lists")
    return value


class CompletionRequest(GenerationRequest):
    """The body of ``POST /v1/completions``."""

    prompt: Annotated[list[str | list[TokenId]], PlainValidator(_as_prompts)]
    logprobs: Int | None = None
    add_special_tokens: bool = True


class Message(Model):
    """One message of a chat; its content is checked by the model's template."""

    model_config = ConfigDict(extra="allow")

    role: str
    content: Any = None

    @model_validator(mode="after")
    def _only_what_is_built(self) -> Self:
        if self.role in ("tool", "function"):
            raise ValueError(f"the role {self.role} is not supported yet")
        if self.role not in ("system", "developer", "user", "assistant"):
            raise ValueError("role must be one of system, developer, user, assistant")
        for name in ("tool_calls", "function_call", "audio"):
            if (self.model_extra or {}).get(name):
                raise ValueError(f"{name} is not supported yet")
        if self.content is None and self.role != "assistant":
            raise ValueError("content is missing")
        return self

    def as_dict(self) -> Mapping[str, Any]:
        """The message for the template; ``developer`` is the newer word for ``system``."""
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": "" if self.content is None else self.content}


Messages = Annotated[list[Message], FailFast(), Field(min_length=1, max_length=MAX_MESSAGES)]


class ChatCompletionRequest(GenerationRequest):
    """The body of ``POST /v1/chat/completions``."""

    messages: Messages
    max_completion_tokens: Int | None = None
    logprobs: bool = False
    top_logprobs: Int | None = None
    add_generation_prompt: bool = True
    add_special_tokens: bool = False

    @model_validator(mode="after")
    def _top_logprobs_need_logprobs(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs is allowed with logprobs: true only")
        return self


class TokenizeRequest(Model):
    """The body of ``POST /tokenize``: a prompt, or the messages of a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages = Field(default_factory=list)
    add_special_tokens: bool | None = None  # absent: true for a prompt, false for a chat
    add_generation_prompt: bool = True

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.prompt is None) == (not self.messages):
            raise ValueError("exactly one of prompt and messages must be given")
        return self


class DetokenizeRequest(Model):
    """The body of ``POST /detokenize``."""

    model: str | None = None
    tokens: TokenIds
