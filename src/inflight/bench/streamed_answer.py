"""The answer of an OpenAI-compatible endpoint, chunk by chunk: its text, and how many tokens came when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import msgspec

from inflight.bench.outcome import Arrival

_MAX_QUOTED_CHARS = 200


class MalformedAnswer(Exception):
    """A chunk is not what the API promises."""


class FailedAnswer(Exception):
    """The server said in its stream that it failed."""


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    completion_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None
    object: str | None = None
    message: str | None = None


class _Seen(NamedTuple):
    """A chunk with a choice. ``num_tokens_so_far``: None unless the chunk carries a usage of its own."""

    at_s: float
    has_text: bool
    is_last: bool
    num_tokens_so_far: int | None


_decoder = msgspec.json.Decoder(_Chunk)


class StreamedAnswer:
    """One answer with one choice, of ``/v1/completions`` or ``/v1/chat/completions``.

    How many tokens a chunk holds is taken from the first of these that there is:

    1. a usage in the chunk itself (vLLM's ``continuous_usage_stats``): its ``completion_tokens``, less those before;
    2. a usage at the end: if it counts as many tokens as there are chunks with text, one each; if it counts one more
       and the last chunk has no text, that chunk holds the end token. Else the first chunk holds one token and the
       others share the rest as evenly as whole numbers go, the later ones the larger shares;
    3. one token for each chunk with text.

    A chunk without text (a role, a finish reason) is no arrival but for the end token of the second rule.
    """

    def __init__(self) -> None:
        self.done_s: float | None = None  # when [DONE] came
        self.num_prompt_tokens: int | None = None  # as the server counts them; None: not told
        self.num_tokens: int | None = None  # of the output, likewise
        self._texts: list[str] = []
        self._chunks: list[_Seen] = []

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._texts)

    @property
    def is_complete(self) -> bool:
        """True once the server has said that nothing more comes: ``[DONE]``, or a finish reason."""
        return self.done_s is not None or any(chunk.is_last for chunk in self._chunks)

    def take(self, data: bytes, at_s: float) -> None:
        """Take in the data of one event. Raises ``MalformedAnswer`` or ``FailedAnswer``."""
        if data.strip() == b"[DONE]":
            self.done_s = at_s
            return
        try:
            chunk = _decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            quoted = data.decode(errors="replace")[:_MAX_QUOTED_CHARS]
            raise MalformedAnswer(f"{error}: {quoted!r}") from error
        if chunk.error is not None or chunk.object == "error":
            said = chunk.error.get("message") if isinstance(chunk.error, dict) else chunk.error
            raise FailedAnswer(str(said or chunk.message or "an error without a message"))
        told = None
        if chunk.usage is not None:
            told = chunk.usage.completion_tokens
            self.num_tokens = self.num_tokens if told is None else told
            if chunk.usage.prompt_tokens is not None:
                self.num_prompt_tokens = chunk.usage.prompt_tokens
        for choice in chunk.choices or ():
            text = choice.text or ""
            if choice.delta is not None:
                text += (choice.delta.reasoning_content or "") + (choice.delta.content or "")
            self._texts.append(text)
            self._chunks.append(_Seen(at_s, bool(text), choice.finish_reason is not None, told))

    def arrivals(self) -> tuple[Arrival, ...]:
        """When the tokens came, by the rules above."""
        if any(chunk.num_tokens_so_far for chunk in self._chunks):
            return self._told_arrivals()
        times_s = [chunk.at_s for chunk in self._chunks if chunk.has_text]
        if self.num_tokens is None:
            return spread_tokens(times_s, len(times_s))
        if self.num_tokens > len(times_s) and self._chunks and not self._chunks[-1].has_text:
            times_s.append(self._chunks[-1].at_s)
        return spread_tokens(times_s, self.num_tokens)

    def _told_arrivals(self) -> tuple[Arrival, ...]:
        arrivals = []
        num_before = 0
        for chunk in self._chunks:
            num_now = num_before if chunk.num_tokens_so_far is None else chunk.num_tokens_so_far
            if num_now > num_before:
                arrivals.append(Arrival(chunk.at_s, num_now - num_before))
                num_before = num_now
        return tuple(arrivals)


def spread_tokens(times_s: Sequence[float], num_tokens: int) -> tuple[Arrival, ...]:
    """The first chunk holds one token, the others share the rest evenly; a lone chunk holds all of them."""
    if not times_s or num_tokens < 1:
        return ()
    if len(times_s) == 1:
        return (Arrival(times_s[0], num_tokens),)
    rest, num_others = num_tokens - 1, len(times_s) - 1
    shares = [1, *(rest * (i + 1) // num_others - rest * i // num_others for i in range(num_others))]
    return tuple(Arrival(at_s, share) for at_s, share in zip(times_s, shares, strict=True) if share)
