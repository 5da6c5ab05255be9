"""What a loaded model really takes: the growth of the process as the system counts it (Linux)."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from inflight.core.errors import InflightError
from inflight.core.output import NewSequence, ScheduledSequence, SchedulerOutput
from inflight.core.request import SamplingParams
from inflight.engine.executor import Executor
from inflight.runtime.freed_memory import give_back
from inflight.runtime.models.llama_sizes import StepSize

STATUS, CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")
LANE = "memory"


@dataclass(frozen=True, slots=True)
class Measured:
    """Bytes: of the weights; of the KV that one step wrote, in so many blocks; of the same step's peak beside it."""

    weight_bytes: int
    kv_bytes: int
    num_kv_blocks: int
    activation_bytes: int


def measure(load: Callable[[], Executor], step: StepSize) -> Measured:
    """Load a model and run the step twice, on two halves of the KV: the second time only the KV grows.

    Raises ``InflightError`` where the system does not tell, and what loading and running raise.
    """
    before = _resident_bytes()
    executor = load()
    try:
        loaded = _resident_bytes()
        half = executor.capacity.num_blocks // 2
        if not half:
            raise InflightError("measuring needs at least two KV blocks")
        CLEAR_REFS.write_text("5")  # the high-water mark starts again
        num_kv_blocks = _run(executor, step, 0, half)
        after_first = _resident_bytes()
        peak = after_first + _above_now_bytes()
        _run(executor, step, half, half)
        kv_bytes = _resident_bytes() - after_first
    finally:
        executor.close()
    return Measured(loaded - before, kv_bytes, num_kv_blocks, peak - loaded - kv_bytes)


def _run(executor: Executor, step: StepSize, first_block: int, num_blocks: int) -> int:
    """Run one step of prompts, as equal as can be, on these blocks alone; return how many of them it wrote."""
    greedy = SamplingParams(temperature=0.0)
    lengths = _lengths(step)
    rows, at = [], 0
    for index, length in enumerate(lengths):
        num_own = -(-length // executor.capacity.block_size)
        table = tuple(first_block + (at + i) % num_blocks for i in range(num_own))
        rows.append(ScheduledSequence((LANE, index), (0,) * length, 0, table, int(index < step.num_logits)))
        at += num_own
    new = tuple(NewSequence(row.seq_id, row.token_ids, greedy, ()) for row in rows)
    try:
        executor.execute(SchedulerOutput(LANE, 0, tuple(rows), new=new))
    finally:
        executor.execute(SchedulerOutput(LANE, 0, (), finished=tuple(row.seq_id for row in rows)))
    return min(at, num_blocks)


def _lengths(step: StepSize) -> list[int]:
    """Tokens of each sequence: one for each row of logits, more if they would be too long."""
    num_rows = min(step.num_tokens, max(step.num_logits, -(-step.num_tokens // step.max_len)))
    each, rest = divmod(step.num_tokens, num_rows)
    return [each + (index < rest) for index in range(num_rows)]


def _resident_bytes() -> int:
    """Memory that is the process's own: what is mapped from files can be dropped, and does not count."""
    gc.collect()
    give_back()
    status = _status()
    return status["RssAnon"] + status["RssShmem"]


def _above_now_bytes() -> int:
    status = _status()
    return max(0, status["VmHWM"] - status["VmRSS"])


def _status() -> dict[str, int]:
    try:
        lines = [line.partition(":") for line in STATUS.read_text().splitlines()]
        names = ("RssAnon", "RssShmem", "VmHWM", "VmRSS")
        found = {name: int(value.split()[0]) * 1024 for name, _, value in lines if name in names}
        if len(found) == len(names):
            return found
    except OSError:
        pass
    raise InflightError(f"memory can be measured on Linux only: {STATUS} does not tell it here")
