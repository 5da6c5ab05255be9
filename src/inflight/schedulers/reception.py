"""Where requests come in: checked, refused or queued in the one order."""

from __future__ import annotations

from inflight.core.errors import Reason, Rejected
from inflight.core.queue import WaitingQueue, order_key
from inflight.core.request import Request
from inflight.core.sequence import Sequence
from inflight.schedulers.book import Book
from inflight.schedulers.config import SchedulerConfig


class Reception:
    """The waiting queue of a scheduler and its door.

    ``max_num_tokens`` is the longest sequence that may be asked for, and ``limit_name`` what sets it.
    """

    def __init__(self, config: SchedulerConfig, book: Book, max_num_tokens: int, limit_name: str) -> None:
        self.waiting = WaitingQueue()
        self.num_sequences = 0  # that ever came in; the next one's number
        self._config = config
        self._book = book
        self._limit = max_num_tokens
        self._limit_name = limit_name

    def add(self, request: Request, now_s: float) -> None:
        """Queue the choices of a request. Raises ``Rejected`` if it can never run, or if the queue is full."""
        self._book.num_received += 1
        try:
            max_num_tokens = self._max_num_tokens(request)
            self._check_room(request)
        except Rejected:
            self._book.num_rejected += 1
            raise
        choices = []
        for choice in range(request.sampling.n):
            key = order_key(
                self._config.scheduling_policy,
                request.priority,
                self._config.priority_ageing_s,
                now_s,
                self.num_sequences,
            )
            self.num_sequences += 1
            choices.append(Sequence(request, choice, key, max_num_tokens))
        self._book.open(request.request_id, choices)
        for seq in choices:
            self.waiting.push(seq)

    def _max_num_tokens(self, request: Request) -> int:
        """Prompt and output of one choice, at most. Raises ``Rejected``."""
        num_prompt = len(request.prompt_token_ids)
        limit = self._limit
        asked = request.sampling.max_tokens
        if num_prompt + (asked or 1) > limit:
            wanted = f"{asked} new tokens" if asked else "at least 1 new token"
            raise Rejected(
                Reason.CONTEXT_LENGTH,
                f"the prompt has {num_prompt} tokens and {wanted} were asked for; together they must not exceed "
                f"{self._limit_name}, which is {limit}",
                "max_tokens" if num_prompt < limit else "prompt",
            )
        return limit if asked is None else num_prompt + asked

    def _check_room(self, request: Request) -> None:
        """Raise ``Rejected`` if the id is taken or the queue is full."""
        if self._book.live(request.request_id):
            raise Rejected(Reason.INVALID, f"request id {request.request_id!r} is in use", "request_id")
        queue_limit = self._config.max_num_waiting_seqs
        if queue_limit is not None and request.sampling.n > queue_limit:
            raise Rejected(
                Reason.INVALID, f"n is {request.sampling.n}, and no more than {queue_limit} sequences may wait", "n"
            )
        if queue_limit is not None and len(self.waiting) + request.sampling.n > queue_limit:
            raise Rejected(
                Reason.QUEUE_FULL,
                f"{len(self.waiting)} sequences wait already and the limit is {queue_limit}",
                retry_after_s=1.0,
            )
