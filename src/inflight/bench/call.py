"""One request in an engine: what it was given, step by step, becomes its outcome.

By who drives an engine (``ChoiceDelta``) and by who reads its step log (``TokenEvent``):
``Call(item_id, num_prompt_tokens, scheduled_s, due_s)``, then ``take(given, at_s, text)`` until that is an outcome, or
``refused(at_s, why)``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from inflight.bench.outcome import Arrival, ErrorKind, Outcome, RequestError
from inflight.core.output import FinishReason, TokenEvent
from inflight.core.request import TokenId
from inflight.engine.events import ChoiceDelta


@dataclass(slots=True)
class Call:
    """A request that was sent when it was due, and what it has been given so far. Times as in ``Outcome``."""

    item_id: str
    num_prompt_tokens: int
    scheduled_s: float
    due_s: float
    arrivals: list[Arrival] = field(default_factory=list)
    token_ids: list[TokenId] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def take(self, given: ChoiceDelta | TokenEvent, at_s: float, text: str = "") -> Outcome | None:
        """Take in what a step gave; the outcome if that was the last."""
        if given.tokens:
            self.arrivals.append(Arrival(at_s, len(given.tokens)))
            self.token_ids += [token.token_id for token in given.tokens]
        self.texts.append(text)
        if given.finish_reason is None:
            return None
        failed = given.finish_reason in (FinishReason.ERROR, FinishReason.ABORT)
        return self._outcome(at_s, RequestError(ErrorKind.FAILED, given.error or "given up") if failed else None)

    def refused(self, at_s: float, why: str) -> Outcome:
        """The outcome of a request that was never taken."""
        return self._outcome(at_s, RequestError(ErrorKind.REFUSED, why))

    def _outcome(self, end_s: float, error: RequestError | None) -> Outcome:
        return Outcome(
            item_id=self.item_id,
            num_prompt_tokens=self.num_prompt_tokens,
            scheduled_s=self.scheduled_s,
            due_s=self.due_s,
            sent_s=self.due_s,
            arrivals=tuple(self.arrivals),
            end_s=end_s,
            text="".join(self.texts),
            token_ids=tuple(self.token_ids),
            error=error,
        )
