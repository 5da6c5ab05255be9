"""One request as its caller sees it: what was handed to the socket, and when."""

from __future__ import annotations

from dataclasses import dataclass, field

from inflight.core.request import Request
from inflight.engine.events import ChoiceDelta


@dataclass(slots=True)
class _Choice:
    first_token_s: float
    last_token_s: float
    num_tokens: int


@dataclass(slots=True)
class Delivery:
    """Fulfils ``metrics.slo.Ended``. Whoever waits for the whole answer sees tokens as they reach the server."""

    request: Request
    error: object | None = None  # why it ended without a complete answer
    _choices: dict[int, _Choice] = field(default_factory=dict)
    _num_ended: int = 0
    _first_token_s: float | None = None
    _end_s: float | None = None

    def hand_on(self, delta: ChoiceDelta, now_s: float) -> None:
        """Take note of a delta that the caller has got."""
        _, choice = delta.seq_id
        if delta.tokens:
            if self._first_token_s is None:
                self._first_token_s = now_s
            seen = self._choices.setdefault(choice, _Choice(now_s, now_s, 0))
            seen.last_token_s = now_s
            seen.num_tokens += len(delta.tokens)
        if delta.finish_reason is not None:
            self._num_ended += 1
            if self.ended:
                self._end_s = now_s

    @property
    def ended(self) -> bool:
        """True once all choices have."""
        return self._num_ended == self.request.sampling.n

    @property
    def ttft_s(self) -> float | None:
        """From its arrival to the first token of any choice; None without one."""
        return None if self._first_token_s is None else self._first_token_s - self.request.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """(Last token - first token) / (n - 1) of the slowest choice; None if none has two tokens."""
        each_s = [
            (one.last_token_s - one.first_token_s) / (one.num_tokens - 1)
            for one in self._choices.values()
            if one.num_tokens > 1
        ]
        return max(each_s, default=None)

    @property
    def e2el_s(self) -> float | None:
        """From its arrival to the end of its last choice; None before."""
        return None if self._end_s is None else self._end_s - self.request.arrival_s
