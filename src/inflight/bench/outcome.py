"""What one caller saw of one request, whoever served it, and the latencies that follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from inflight.core.request import TokenId


class ErrorKind(StrEnum):
    """How a request can fail."""

    CONNECTION = "connection"  # the server was not reached, or hung up before it answered
    HTTP_STATUS = "http_status"  # it answered, and not with 200
    TIMEOUT = "timeout"  # the answer was not complete in time
    BROKEN_STREAM = "broken_stream"  # the answer ended before its end
    MALFORMED = "malformed"  # the answer is not what the API promises
    FAILED = "failed"  # the server, or the engine, said so in the middle of its answer
    REFUSED = "refused"  # by an engine in this process


class RequestError(NamedTuple):
    """Why a request has no complete answer."""

    kind: ErrorKind
    message: str


class Arrival(NamedTuple):
    """Tokens that came together: a step of the engine, or a chunk of a stream."""

    at_s: float
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One request, ended. Times are in seconds on one monotonic clock, the same for all requests of a run."""

    item_id: str
    num_prompt_tokens: int
    scheduled_s: float  # when it was to be sent, had there been a caller for it
    due_s: float  # when there was one: later than scheduled only if the number of callers is limited
    sent_s: float  # when it was sent: later than due only if the generator could not keep up
    arrivals: tuple[Arrival, ...] = ()
    end_s: float  # the answer was complete, or had failed
    text: str = ""
    token_ids: tuple[TokenId, ...] | None = None  # None: not told, as over HTTP
    counted: bool = True  # the tokens were counted by whoever made them; False: one for each chunk
    error: RequestError | None = None

    @property
    def num_output_tokens(self) -> int:
        """Tokens that came, of a failed request too."""
        return sum(arrival.num_tokens for arrival in self.arrivals)

    @property
    def ttft_s(self) -> float | None:
        """Time to first token: first token - sent. None without a token."""
        return self.arrivals[0].at_s - self.sent_s if self.arrivals else None

    @property
    def tpot_s(self) -> float | None:
        """Time per output token: (last token - first token) / (n - 1). None, because undefined, for n < 2."""
        num_later = self.num_output_tokens - 1
        return (self.arrivals[-1].at_s - self.arrivals[0].at_s) / num_later if num_later > 0 else None

    @property
    def itl_s(self) -> list[float]:
        """Inter-token latencies: one sample for each token after the first.

        k tokens that came together share the gap before them: k samples of gap / k. What came together with the first
        token came at once: samples of 0. The sum of the samples is last token - first token, always.
        """
        samples = [0.0] * (self.arrivals[0].num_tokens - 1) if self.arrivals else []
        for before, now in zip(self.arrivals, self.arrivals[1:], strict=False):
            samples += [(now.at_s - before.at_s) / now.num_tokens] * now.num_tokens
        return samples

    @property
    def e2el_s(self) -> float:
        """End-to-end latency: end - sent."""
        return self.end_s - self.sent_s


def run_duration_s(outcomes: Sequence[Outcome]) -> float:
    """From the first request that was due to the last end; 0 without requests."""
    if not outcomes:
        return 0.0
    return max(outcome.end_s for outcome in outcomes) - min(outcome.due_s for outcome in outcomes)
