"""A sequence: the scheduler's mutable progress on one choice of one request.

Progress is one counter. A sequence has ``num_tokens`` and ``num_computed``, and is so many tokens behind; prompts,
chunks, decoding and recomputing after a preemption are all the same arithmetic.
"""

from __future__ import annotations

from inflight.core.lifecycle import Status
from inflight.core.request import Request, SeqId, TokenId

OrderKey = tuple[float, int]


class Sequence:
    """One row's tokens, progress and status."""

    __slots__ = (
        "aborted",
        "block_digests",
        "key",
        "known_to_executor",
        "max_num_tokens",
        "num_cached_tokens",
        "num_computed",
        "num_preemptions",
        "num_prompt_tokens",
        "request",
        "retry_len",
        "seq_id",
        "status",
        "token_ids",
    )

    def __init__(self, request: Request, choice: int, key: OrderKey, max_num_tokens: int) -> None:
        self.request = request
        self.seq_id: SeqId = (request.request_id, choice)
        self.key = key  # its place in the one order: served from the head, evicted from the tail
        self.token_ids: list[TokenId] = list(request.prompt_token_ids)  # prompt, then output
        self.num_prompt_tokens = len(self.token_ids)
        self.max_num_tokens = max_num_tokens  # prompt + output, at most
        self.num_computed = 0  # KV of [0, num_computed) is stored, in its blocks or in the host tier
        self.num_cached_tokens = 0  # of the prompt, found in the prefix cache when it first entered
        self.block_digests: list[bytes] = []  # of its first full blocks; the prefix cache's own
        self.num_preemptions = 0
        self.retry_len = 0  # > 0: a step of so many tokens failed; the same row runs again, alone
        self.aborted = False  # given up while in flight; leaves when the step ends
        self.known_to_executor = False
        self.status = Status.WAITING

    @property
    def num_tokens(self) -> int:
        """Known tokens: prompt and output so far."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Sampled tokens so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_behind(self) -> int:
        """Known tokens whose KV is not stored: 1 while decoding."""
        return len(self.token_ids) - self.num_computed

    @property
    def max_num_stored(self) -> int:
        """The most KV it can ever need, in tokens: the last sampled token is never run."""
        return self.max_num_tokens - 1
