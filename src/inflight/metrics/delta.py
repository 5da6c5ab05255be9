"""What happened in an engine since it was last asked: frozen data that crosses from process to process."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from inflight.core.errors import Reason
from inflight.core.output import SchedulerStats
from inflight.core.request import RequestId, TokenId
from inflight.metrics.ledger import Slots


class Outcome(StrEnum):
    """How a request ended. ``LENGTH`` if any of its choices did, ``FAILED`` likewise."""

    STOP = "stop"
    LENGTH = "length"
    ABORTED = "aborted"
    FAILED = "failed"


class FirstToken(NamedTuple):
    """A request has its first token, at ``at_s`` on the engine's clock: arrival + ``queue_s`` + ``prefill_s``."""

    request_id: RequestId
    queue_s: float
    prefill_s: float
    at_s: float


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request that was accepted and has ended. A time that never came to be is None, never 0.

    A request-level batch withholds what it computes until all of it comes back: ``ttft_s`` and ``e2e_s`` count to that
    release, ``computed_ttft_s`` and ``computed_e2e_s`` to the steps that gave the first and the last token.
    """

    request_id: RequestId
    outcome: Outcome
    num_choices: int
    num_prompt_tokens: int
    num_output_tokens: int  # over all choices
    num_preemptions: int
    num_tokens_lost: int  # stored, and given up in preemptions
    queue_s: float | None  # None: never scheduled
    ttft_s: float | None  # queue + prefill, as the engine sees it; None: no token
    e2e_s: float  # arrival -> the last choice ended
    tpot_s: tuple[float, ...]  # of the choices with at least two tokens that finished
    max_itl_s: float | None  # the longest gap; None: no choice has two tokens
    computed_ttft_s: float | None = None
    computed_e2e_s: float | None = None
    num_cached_tokens: int = 0  # of the prompt, found in the prefix cache; the first choice's
    error: str | None = None
    prompt_token_ids: tuple[TokenId, ...] = ()  # only if asked for


@dataclass(frozen=True, slots=True)
class MetricsDelta:
    """Samples (seconds, or a count per step) and increments, oldest first. See ``definitions`` for the formulas."""

    batch_rows: tuple[int, ...] = ()
    batch_tokens: tuple[int, ...] = ()
    first_tokens: tuple[FirstToken, ...] = ()
    itl_s: tuple[float, ...] = ()
    itl_preempted_s: tuple[float, ...] = ()  # gaps in which the sequence was preempted; not in itl_s
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_preemptions: int = 0
    num_swapped_out: int = 0  # of the preemptions, those whose KV moved to the host tier
    num_tokens_lost: int = 0
    num_blocks_out: int = 0  # copied to the host tier, and from it, in steps that ended well
    num_blocks_in: int = 0
    copies_s: float = 0.0
    rejected: tuple[Reason, ...] = ()
    ended: tuple[RequestRecord, ...] = ()
    num_engines_lost: int = 0
    num_lost: int = 0  # requests that were in flight when the engine was lost
    num_lost_aborted: int = 0  # requests that were given up, of which the engine had not said so when it was lost
    slots: Slots = field(default_factory=Slots)  # of the steps that ended


def rise(before: SchedulerStats | None, after: SchedulerStats, name: str) -> int:
    """By how much a count grew between two stats of an engine; where it fell the engine was lost, and counts anew."""
    grown: int = getattr(after, name) - (getattr(before, name) if before else 0)
    return max(0, grown)
