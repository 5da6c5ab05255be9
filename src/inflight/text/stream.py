"""The text of one sequence, released as its tokens come and never to be taken back."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Sequence

from inflight.core.output import Stop
from inflight.core.request import SamplingParams, TokenId
from inflight.text.stop_strings import StopMatcher
from inflight.text.tokenizer import Tokenizer


class TextStream:
    """One per sequence.

    Whatever the split of ``push`` and ``take``, the texts taken are, joined, the decoded text of all tokens pushed,
    cut at the first stop string. First means completed first; of several completed by the same character the
    longest, which started first. A stop string completed before the ``min_tokens``-th token is part of the text.

    Held back are an incomplete UTF-8 character and the longest end that may still become a stop string. The cost is
    amortised constant per token, for a given number of stop strings.
    """

    def __init__(self, tokenizer: Tokenizer, sampling: SamplingParams) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_token_ids if sampling.skip_special_tokens else frozenset()
        self._drop_space = tokenizer.drops_leading_space
        self._min_tokens = sampling.min_tokens
        self._keep_stop = sampling.include_stop_str_in_output
        self._matchers = [StopMatcher(stop) for stop in sampling.stop]
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._num_tokens = 0
        self._pending: deque[str] = deque()  # decoded and not yet taken
        self._num_pending = 0  # its characters
        self._stopped = False

    def push(self, token_ids: Sequence[TokenId]) -> Stop | None:
        """Add new tokens. Returns the stop string they complete, if any; tokens after it are dropped."""
        for num_pushed, token_id in enumerate(token_ids, start=1):
            if self._stopped:
                return None
            self._num_tokens += 1
            if token_id in self._skipped:
                continue
            text = self._decoder.decode(self._tokenizer.token_bytes(token_id))
            if text and (stop := self._append(text)):
                return Stop(num_pushed, stop)
        return None

    def take(self, final: bool) -> str:
        """The text that is safe to release now; with ``final``, all that is left."""
        if final and not self._stopped and (tail := self._decoder.decode(b"", final=True)):
            self._append(tail)
        num_free = self._num_pending
        if not (final or self._stopped or self._keep_stop):
            num_free -= max((matcher.num_matched for matcher in self._matchers), default=0)
        return self._release(num_free)

    def _append(self, text: str) -> str | None:
        """Add decoded text, up to and with the first stop string, which is returned."""
        if self._drop_space:
            self._drop_space = False
            text = text.removeprefix(" ")
        found = self._first_stop(text)
        self._pending.append(text)
        self._num_pending += len(text)
        if found is None:
            return None
        end, stop = found
        kept = self._num_pending - len(text) + end - (0 if self._keep_stop else len(stop))
        before_stop = self._release(kept)
        self._pending = deque([before_stop])
        self._num_pending = kept
        self._stopped = True
        return stop

    def _first_stop(self, text: str) -> tuple[int, str] | None:
        """The first stop string that ``text`` completes, and the position in ``text`` after it."""
        first: tuple[int, str] | None = None
        for matcher in self._matchers:
            end = matcher.feed(text)
            if self._num_tokens < self._min_tokens:
                while end is not None:
                    end = matcher.feed(text, end)
            elif end is not None and (first is None or (end, -len(matcher.stop)) < (first[0], -len(first[1]))):
                first = end, matcher.stop
        return first

    def _release(self, num_characters: int) -> str:
        """Remove so many characters from the front of what is pending, and return them."""
        pieces = []
        missing = num_characters
        while missing > 0:
            piece = self._pending.popleft()
            if len(piece) > missing:
                self._pending.appendleft(piece[missing:])
                piece = piece[:missing]
            pieces.append(piece)
            missing -= len(piece)
        self._num_pending -= num_characters
        return "".join(pieces)
