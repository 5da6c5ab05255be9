"""What leaves the engine: text and tokens per sequence and step, and the facts about the engine itself."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from inflight.core.output import FinishReason, SampledToken
from inflight.core.request import SeqId, TokenId


class ChoiceDelta(NamedTuple):
    """What one step gave one sequence, with its text. The last one of a sequence has a ``finish_reason``.

    ``text`` may lag behind ``tokens``: an incomplete UTF-8 character and a possible beginning of a stop string are
    held back. The texts of a sequence, joined, are its output.
    """

    seq_id: SeqId
    text: str
    tokens: tuple[SampledToken, ...]
    finish_reason: FinishReason | None = None
    stop_reason: TokenId | str | None = None
    error: str | None = None
    num_cached_tokens: int = 0  # of the prompt, whose KV was found in the prefix cache


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Facts that are fixed once the engine has started."""

    model_name: str
    num_parameters: int
    weight_format: str
    device: str
    num_threads: int
    vocab_size: int
    scheduler: str  # continuous, static, dynamic
    max_model_len: int
    max_num_seqs: int  # seats of a step
    max_num_batched_tokens: int | None  # None: whole prompts, however long
    num_blocks: int
    block_size: int
    bytes_per_block: int
    notes: tuple[str, ...] = ()  # the arithmetic behind the numbers, a line each, for people
    max_num_waiting_seqs: int | None = None  # None: no limit


class State(StrEnum):
    """What the engine can do for a caller now."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    RESTARTING = "restarting"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Health:
    """The state, why it is so, and how often the engine was restarted."""

    state: State
    reason: str | None = None
    num_restarts: int = 0
