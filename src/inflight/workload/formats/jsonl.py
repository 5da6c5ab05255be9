"""The project's own traces: JSON lines of ``arrival_s``, ``max_tokens`` and a prompt.

The prompt is the first of these that is there: ``prompt_token_ids``, ``prompt`` (a text), ``num_prompt_tokens`` (its
length alone). ``arrival_s`` is 0 if absent, so that the file of a race is a trace too. Other keys are for people.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from inflight.workload.lines import parse_lines
from inflight.workload.trace import Encode, TraceRequest

_Length = Annotated[int, msgspec.Meta(ge=1, lt=2**31)]


class _Line(msgspec.Struct):
    max_tokens: _Length
    arrival_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    prompt_token_ids: (
        Annotated[tuple[Annotated[int, msgspec.Meta(ge=0, lt=2**31)], ...], msgspec.Meta(min_length=1)] | None
    ) = None
    prompt: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    num_prompt_tokens: _Length | None = None


def read(path: Path, encode: Encode | None) -> Iterator[TraceRequest]:
    """Yield the requests. Raises as ``parse_lines`` does, and for a text without ``encode``."""
    decoder = msgspec.json.Decoder(_Line)

    def request(text: bytes) -> TraceRequest:
        line = decoder.decode(text)
        token_ids = line.prompt_token_ids
        if token_ids is None and line.prompt is not None:
            if encode is None:
                raise ValueError("a prompt as text needs a tokenizer")
            token_ids = tuple(encode(line.prompt))
        num_prompt_tokens = line.num_prompt_tokens if token_ids is None else len(token_ids)
        if num_prompt_tokens is None:
            raise ValueError("no prompt: one of prompt_token_ids, prompt, num_prompt_tokens is needed")
        return TraceRequest(line.arrival_s, num_prompt_tokens, line.max_tokens, prompt_token_ids=token_ids)

    for _, one in parse_lines(path, request):
        yield one
