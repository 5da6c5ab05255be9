"""The ``usage`` of an answer, in OpenAI's shape, complete or so far."""

from __future__ import annotations

from typing import Any

from inflight.engine.events import ChoiceDelta
from inflight.server.generation import Call


class Usage:
    """Counts the tokens of a call. A prompt counts once whatever ``n``, and its cached tokens as its first choice's."""

    def __init__(self, call: Call) -> None:
        self._num_prompt_tokens = call.num_prompt_tokens
        self._num_output_tokens = 0
        self._num_cached_tokens: dict[int, int] = {}  # by the first choice of each prompt

    def add(self, index: int, delta: ChoiceDelta) -> None:
        """Take in a delta of the choice ``index`` of the answer."""
        self._num_output_tokens += len(delta.tokens)
        if delta.seq_id[1] == 0:
            self._num_cached_tokens[index] = delta.num_cached_tokens

    def as_json(self) -> dict[str, Any]:
        """The object, ready for JSON."""
        return {
            "prompt_tokens": self._num_prompt_tokens,
            "completion_tokens": self._num_output_tokens,
            "total_tokens": self._num_prompt_tokens + self._num_output_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(self._num_cached_tokens.values())},
        }
