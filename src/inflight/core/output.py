"""The values that pass between scheduler, executor and engine: plain frozen data.

Values made once per row and step are named tuples, because they are made hundreds of times in a step and cost less
than half of a frozen dataclass; values made once per step are frozen dataclasses.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from inflight.core.request import SamplingParams, SeqId, TokenId

LaneId = str  # one executor with its own KV memory, running one step at a time
MAIN_LANE: LaneId = "main"  # of a scheduler that has only one
BlockId = int


class FinishReason(StrEnum):
    """Why a sequence ended; ``ABORT`` and ``ERROR`` are ours, the others OpenAI's."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class ScheduledSequence(NamedTuple):
    """One row of a step: ``q_len = len(token_ids)`` tokens of one sequence."""

    seq_id: SeqId
    token_ids: tuple[TokenId, ...]  # the q_len >= 1 tokens to run
    start: int  # position of token_ids[0]; KV of [0, start) is stored
    block_table: tuple[BlockId, ...]  # covers [0, start + q_len)
    num_logits: int  # how many of the last rows want logits: 0 mid-prompt, 1 at the end of what is known


class NewSequence(NamedTuple):
    """An executor's per-sequence state (sampler, penalties, random stream) starts here."""

    seq_id: SeqId
    prompt_token_ids: tuple[TokenId, ...]
    sampling: SamplingParams
    eos_token_ids: tuple[TokenId, ...]


class BlockCopy(NamedTuple):
    """All that one block holds is copied between the KV memory and the host tier."""

    to_host: bool  # or from it
    block: BlockId
    host_block: BlockId


class DeadRow(NamedTuple):
    """A seat whose sequence has ended and which is computed all the same, as request-level batching does."""

    seq_id: SeqId
    start: int  # where its pad token runs: the position that the sequence would have reached


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """All that an executor must do in one step.

    The copies come before the forward pass: those to the host tier first, for their blocks may be written in this very
    step, then those from it. In a step that fails, it does not matter which of them were done.

    A padded step is a rectangle: each row has ``padded_to - q_len`` pad tokens on its left, and each dead row runs
    ``padded_to`` of them. Pads and dead rows read and write the scratch blocks alone, so they change no bit of a real
    row; they are computed like it, and what they give is dropped.
    """

    lane: LaneId
    step: int
    scheduled: tuple[ScheduledSequence, ...]
    new: tuple[NewSequence, ...] = ()
    finished: tuple[SeqId, ...] = ()  # their state in the executor ends, before this step runs
    preempted: tuple[SeqId, ...] = ()  # lost their blocks in this step; their state in the executor stays
    swapped_out: tuple[SeqId, ...] = ()  # those of them whose KV moved to the host tier, and is not lost
    copies: tuple[BlockCopy, ...] = ()
    padded_to: int | None = None  # every row is run at this q_len; None: each at its own
    dead: tuple[DeadRow, ...] = ()
    scratch_table: tuple[BlockId, ...] = ()  # covers the longest run of pads, and every dead row to its end

    @property
    def num_tokens(self) -> int:
        """Query tokens of the step that belong to a sequence."""
        return sum(len(row.token_ids) for row in self.scheduled)

    @property
    def num_computed_tokens(self) -> int:
        """Query tokens that the step computes: pads and dead rows with them."""
        if self.padded_to is None:
            return self.num_tokens
        return self.padded_to * (len(self.scheduled) + len(self.dead))


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing can run on the lane now; ``wake_at_s`` is when that may change by itself, if ever."""

    wake_at_s: float | None = None


class SampledToken(NamedTuple):
    """One sampled token; logprobs (natural log) are of the distribution before temperature and truncation."""

    token_id: TokenId
    logprob: float | None = None
    top_logprobs: tuple[tuple[TokenId, float], ...] = ()  # most likely first


class SampledRow(NamedTuple):
    """What one row with ``num_logits > 0`` sampled, oldest first."""

    seq_id: SeqId
    tokens: tuple[SampledToken, ...]


class FailedRow(NamedTuple):
    """A row that failed alone, in a step that served the others."""

    seq_id: SeqId
    message: str


@dataclass(frozen=True, slots=True)
class StepResult:
    """What an executor returns: one ``SampledRow`` or ``FailedRow`` for each row that asked for logits."""

    step: int
    sampled: tuple[SampledRow, ...]
    duration_s: float
    failed: tuple[FailedRow, ...] = ()
    operations_s: tuple[tuple[str, float], ...] = ()  # of the forward pass, all layers together; () if not measured
    num_computed_tokens: int | None = None  # rows fed to the matrix products, as the forward pass counted them
    copies_s: float = 0.0  # of the duration, what the copies took


class Stop(NamedTuple):
    """A stop string was completed by the ``num_tokens``-th token that the row sampled in this step."""

    num_tokens: int
    stop: str


class TokenEvent(NamedTuple):
    """What one step gave one sequence. The last event of a sequence has a ``finish_reason``."""

    seq_id: SeqId
    tokens: tuple[SampledToken, ...]
    finish_reason: FinishReason | None = None
    stop_reason: TokenId | str | None = None  # the stop token or stop string that ended it
    error: str | None = None  # with FinishReason.ERROR
    num_cached_tokens: int = 0  # of the prompt, whose KV was found in the prefix cache


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """Requests by fate, and gauges. received = finished + aborted + rejected + failed + live, at every instant."""

    received: int = 0
    finished: int = 0
    aborted: int = 0
    rejected: int = 0
    failed: int = 0
    live: int = 0
    num_running_seqs: int = 0
    num_waiting_seqs: int = 0
    num_preemptions: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0  # that no sequence holds
    num_cached_blocks: int = 0  # of those that are free: they keep a prefix that can be found, until they are needed
    num_shared_blocks: int = 0  # that several sequences hold
    num_stored_tokens: int = 0  # slots that are written, in the blocks that sequences hold
    num_host_blocks: int = 0
    num_free_host_blocks: int = 0
    num_prefix_query_tokens: int = 0  # of prompts that were looked up, each once
    num_prefix_hit_tokens: int = 0  # of those, found
    num_evicted_blocks: int = 0  # findable prefixes that were given up for new tokens
    num_swapped_out_blocks: int = 0  # as decided, in steps that failed too
    num_swapped_in_blocks: int = 0
