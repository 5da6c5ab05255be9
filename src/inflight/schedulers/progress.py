"""A sequence's progress: the row of its next tokens, and what a step gave it. The same for every scheduler."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from inflight.core.errors import StepFailed
from inflight.core.lifecycle import Status
from inflight.core.output import (
    FinishReason,
    NewSequence,
    SampledToken,
    ScheduledSequence,
    SchedulerOutput,
    StepResult,
    Stop,
    TokenEvent,
)
from inflight.core.request import SeqId, TokenId
from inflight.core.sequence import Sequence


class Ending(NamedTuple):
    """Why a row ends. ``reason`` is None where nobody is to be told: its caller has given it up."""

    status: Status
    cause: str
    reason: FinishReason | None
    stop_reason: TokenId | str | None = None


class Gain(NamedTuple):
    """What a step gave one of its rows."""

    seq: Sequence
    tokens: tuple[SampledToken, ...] = ()
    ending: Ending | None = None


_ABORTED = Ending(Status.ABORTED, "abort", None)


def settle(
    sequences: Mapping[SeqId, Sequence],
    output: SchedulerOutput,
    result: StepResult | StepFailed,
    stops: Mapping[SeqId, Stop],
) -> list[Gain]:
    """Advance every row of a step by what it ran, append what it sampled, and say what came of it.

    After a step that failed as a whole nobody has advanced: each row is marked to run again alone
    (``Sequence.retry_len``), and one that fails again was the culprit.
    """
    if isinstance(result, StepFailed):
        return [_settle_failed(sequences[row.seq_id], row, result.message) for row in output.scheduled]
    sampled, failed = dict(result.sampled), dict(result.failed)
    gains = []
    for row in output.scheduled:
        seq = sequences[row.seq_id]
        seq.retry_len = 0
        if seq.aborted:
            gains.append(Gain(seq, ending=_ABORTED))
        elif row.seq_id in failed:
            gains.append(Gain(seq, ending=_failure(failed[row.seq_id])))
        elif row.num_logits and row.seq_id not in sampled:
            gains.append(Gain(seq, ending=_failure("the executor returned no token")))
        else:
            seq.num_computed = row.start + len(row.token_ids)
            tokens = sampled[row.seq_id] if row.num_logits else ()
            gains.append(_extend(seq, tokens, stops.get(row.seq_id)))
    return gains


def event_of(seq: Sequence, tokens: tuple[SampledToken, ...], ending: Ending | None) -> TokenEvent | None:
    """What the caller of a row is told; ``None`` if there is nothing to tell."""
    if ending is None:
        return TokenEvent(seq.seq_id, tokens, num_cached_tokens=seq.num_cached_tokens) if tokens else None
    if ending.reason is None:
        return None
    error = ending.cause if ending.reason is FinishReason.ERROR else None
    return TokenEvent(seq.seq_id, tokens, ending.reason, ending.stop_reason, error, seq.num_cached_tokens)


def row_of(seq: Sequence, num_tokens: int, table: tuple[int, ...]) -> ScheduledSequence:
    """The next ``num_tokens`` tokens of a sequence as a row of a step."""
    start = seq.num_computed
    end = start + num_tokens
    is_last = end == len(seq.token_ids)
    token_ids = (seq.token_ids[-1],) if is_last and num_tokens == 1 else tuple(seq.token_ids[start:end])
    return ScheduledSequence(seq.seq_id, token_ids, start, table, int(is_last))


def introduce(sequences: Iterable[Sequence]) -> tuple[NewSequence, ...]:
    """Those of ``sequences`` that the executor meets for the first time."""
    new = []
    for seq in sequences:
        if not seq.known_to_executor:
            seq.known_to_executor = True
            request = seq.request
            new.append(NewSequence(seq.seq_id, request.prompt_token_ids, request.sampling, request.eos_token_ids))
    return tuple(new)


def _settle_failed(seq: Sequence, row: ScheduledSequence, message: str) -> Gain:
    if seq.aborted:
        return Gain(seq, ending=_ABORTED)
    if seq.retry_len:
        return Gain(seq, ending=_failure(message))
    seq.retry_len = len(row.token_ids)
    return Gain(seq)


def _failure(message: str) -> Ending:
    return Ending(Status.FAILED, message, FinishReason.ERROR)


def _extend(seq: Sequence, tokens: tuple[SampledToken, ...], stop: Stop | None) -> Gain:
    """Append what was sampled, up to the token that ends the sequence."""
    for index, token in enumerate(tokens):
        seq.token_ids.append(token.token_id)
        ending = _ending(seq, stop.stop if stop and stop.num_tokens == index + 1 else None)
        if ending is not None:
            return Gain(seq, tokens[: index + 1], ending)
    return Gain(seq, tokens)


def _ending(seq: Sequence, stop: str | None) -> Ending | None:
    """Whether the sequence ends with its newest token, and the token or string that ended it."""
    sampling = seq.request.sampling
    token_id = seq.token_ids[-1]
    if seq.num_output_tokens >= sampling.min_tokens:
        if not sampling.ignore_eos and token_id in seq.request.eos_token_ids:
            return _finished(FinishReason.STOP, None)
        if token_id in sampling.stop_token_ids:
            return _finished(FinishReason.STOP, token_id)
        if stop is not None:
            return _finished(FinishReason.STOP, stop)
    if len(seq.token_ids) >= seq.max_num_tokens:
        return _finished(FinishReason.LENGTH, None)
    return None


def _finished(reason: FinishReason, stop_reason: TokenId | str | None) -> Ending:
    return Ending(Status.FINISHED, reason, reason, stop_reason)
