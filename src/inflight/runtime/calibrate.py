"""How many tokens a step may have so that it takes no longer than asked: measured on this machine, with this model."""

from __future__ import annotations

from inflight.core.output import NewSequence, ScheduledSequence, SchedulerOutput
from inflight.core.request import SamplingParams, SeqId
from inflight.engine.executor import Executor

MIN_TOKENS, MAX_TOKENS, MULTIPLE = 32, 2048, 16
NUM_DECODES = 8  # rows of one token beside the chunk: a mixed step
BUDGET_S = 2.0  # no step starts after so much has been spent: a busy machine must not delay the start
LANE = "calibration"


def calibrate_num_batched_tokens(executor: Executor, target_step_s: float = 0.1) -> tuple[int, str]:
    """Return the largest multiple of 16 in [32, 2048] whose mixed step stays under ``target_step_s``, and why.

    It doubles the step's tokens until one takes too long, then reads the answer off the straight line between the last
    two sizes. It takes at most ``BUDGET_S`` and one step more, and answers with what it knows by then. To be called
    before the executor serves: the steps write to KV blocks from 0 on, which nobody may hold yet; their sequences are
    ended. Raises ``StepFailed``.
    """
    capacity = executor.capacity
    room = (capacity.num_blocks - 1) * capacity.block_size  # one block is the decodes' own
    if room < MIN_TOKENS:
        return MIN_TOKENS, f"{MIN_TOKENS}: the KV pool is too small to measure a step"
    size, below = MIN_TOKENS, (0, 0.0)
    # The first step of a process pays for what later ones find ready: it counts only if there is no time for another.
    step_s = spent_s = _step_s(executor, size)
    while spent_s < BUDGET_S:
        step_s = _step_s(executor, size)
        spent_s += step_s
        if spent_s < BUDGET_S:  # the faster of two: a neighbour slows a step down, nothing speeds it up
            again_s = _step_s(executor, size)
            spent_s += again_s
            step_s = min(step_s, again_s)
        if step_s > target_step_s or size * 2 > min(MAX_TOKENS, room) or spent_s >= BUDGET_S:
            break
        below = (size, step_s)
        size *= 2
    if step_s <= target_step_s:
        tokens, reason = size, "the largest size tried"
    else:
        fraction = max(0.0, target_step_s - below[1]) / (step_s - below[1])
        tokens = int(below[0] + fraction * (size - below[0])) // MULTIPLE * MULTIPLE
        tokens = max(MIN_TOKENS, tokens)
        reason = f"{below[0]} took {below[1] * 1e3:.0f} ms" if below[0] else "the smallest size allowed"
    if spent_s >= BUDGET_S:
        reason += f", and no time for more after {spent_s:.1f} s: the machine is slow or busy"
    why = (
        f"{tokens} tokens a step: {size} took {step_s * 1e3:.0f} ms, {reason}; the aim is {target_step_s * 1e3:.0f} ms"
    )
    return tokens, why


def _step_s(executor: Executor, num_tokens: int) -> float:
    """Seconds of one step: a chunk of a prompt beside a few rows that decode."""
    capacity = executor.capacity
    chunk = num_tokens - NUM_DECODES
    blocks = tuple(range(1, 1 + -(-chunk // capacity.block_size)))
    rows = [ScheduledSequence((LANE, 0), (0,) * chunk, 0, blocks, 1)]
    # Each decodes the first token of block 0: what they attend to does not matter, that they are rows does.
    rows += [ScheduledSequence((LANE, choice), (0,), 0, (0,), 1) for choice in range(1, NUM_DECODES + 1)]
    greedy = SamplingParams(temperature=0.0)
    seq_ids: list[SeqId] = [row.seq_id for row in rows]
    new = tuple(NewSequence(row.seq_id, row.token_ids, greedy, ()) for row in rows)
    try:
        return executor.execute(SchedulerOutput(LANE, 0, tuple(rows), new=new)).duration_s
    finally:
        executor.execute(SchedulerOutput(LANE, 0, (), finished=tuple(seq_ids)))
