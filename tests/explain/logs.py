"""Step logs to be explained: written by hand, and by engines on paper."""

from __future__ import annotations

import random
import zlib
from collections import deque
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fakes import PaperExecutor, PaperText
from inflight.core.output import (
    DeadRow,
    FinishReason,
    Idle,
    NewSequence,
    SampledRow,
    SampledToken,
    ScheduledSequence,
    SchedulerOutput,
    StepResult,
    TokenEvent,
)
from inflight.core.request import Request, RequestId, SamplingParams, SeqId
from inflight.engine.clock import VirtualClock
from inflight.engine.core import EngineCore
from inflight.engine.recorder import Aborted, Added, Recorder, Scheduled, Started, StepLog, Updated
from inflight.schedulers.config import ContinuousConfig, SchedulerConfig
from inflight.schedulers.registry import make_scheduler

SEATS = {"continuous": "max_num_seqs", "static": "batch_size", "dynamic": "max_batch_size"}


class LogWriter:
    """A step log, line by line; each step takes ``step_s`` seconds and the next begins when it ends."""

    def __init__(self, path: Path, scheduler: str, num_seats: int, num_blocks: int = 64, block_size: int = 4) -> None:
        self.path, self.now_s, self.num_steps, self.block_size = path, 0.0, 0, block_size
        self._log = StepLog(path)
        self._num_prompt: dict[RequestId, int] = {}
        self._known: set[SeqId] = set()
        self._tables: dict[SeqId, tuple[int, ...]] = {}
        self._num_taken = 0
        self._log.write(Started(scheduler, {SEATS[scheduler]: num_seats}, num_blocks, block_size))

    def add(self, request_id: RequestId, num_prompt: int, n: int = 1) -> None:
        self._num_prompt[request_id] = num_prompt
        sampling = SamplingParams(n=n, max_tokens=None)
        request = Request(request_id=request_id, prompt_token_ids=(1,) * num_prompt, sampling=sampling)
        self._log.write(Added(self.now_s, request))

    def abort(self, request_id: RequestId) -> None:
        self._log.write(Aborted(self.now_s, request_id))

    def begin(
        self,
        rows: list[tuple[SeqId, int, int]],  # sequence, start, q_len
        padded_to: int | None = None,
        dead: tuple[tuple[SeqId, int], ...] = (),
        preempted: tuple[SeqId, ...] = (),
        swapped_out: tuple[SeqId, ...] = (),
        finished: tuple[SeqId, ...] = (),
    ) -> SchedulerOutput:
        new = tuple(
            NewSequence(seq_id, (1,) * self._num_prompt[seq_id[0]], SamplingParams(), ())
            for seq_id, _, _ in rows
            if seq_id not in self._known
        )
        self._known |= {one.seq_id for one in new}
        scheduled = tuple(
            ScheduledSequence(
                seq_id,
                (1,) * num_tokens,
                start,
                self._table(seq_id, start + num_tokens),
                int(start + num_tokens >= self._num_prompt[seq_id[0]]),
            )
            for seq_id, start, num_tokens in rows
        )
        output = SchedulerOutput(
            "main",
            self.num_steps,
            scheduled,
            new,
            finished,
            preempted,
            swapped_out,
            padded_to=padded_to,
            dead=tuple(DeadRow(*one) for one in dead),
        )
        self._log.write(Scheduled(self.now_s, output))
        self.num_steps += 1
        return output

    def end(
        self,
        output: SchedulerOutput,
        ended: tuple[SeqId, ...] = (),
        failure: str | None = None,
        step_s: float = 0.01,
    ) -> None:
        sampled = tuple(SampledRow(row.seq_id, (SampledToken(1),)) for row in output.scheduled if row.num_logits)
        result = None if failure else StepResult(output.step, sampled, step_s)
        events = tuple(TokenEvent(seq_id, (), FinishReason.LENGTH) for seq_id in ended)
        self.now_s += step_s
        self._log.write(Updated(self.now_s, output.step, result, failure, (), events))

    def step(self, rows, ended=(), failure=None, step_s=0.01, **more) -> None:
        self.end(self.begin(rows, **more), tuple(ended), failure, step_s)

    def close(self) -> Path:
        self._log.close()
        return self.path

    def _table(self, seq_id: SeqId, num_tokens: int) -> tuple[int, ...]:
        table = self._tables.get(seq_id, ())
        while len(table) * self.block_size < num_tokens:
            table += (self._num_taken,)
            self._num_taken += 1
        self._tables[seq_id] = table
        return table


def write_batch(log: LogWriter, requests: dict[RequestId, tuple[int, int]], padding: bool = True) -> None:
    """One request-level batch of (prompt tokens, new tokens): prompts at once, then until the longest answer is there.

    Nobody hears of anything before the batch has ended.
    """
    longest = max(num_prompt for num_prompt, _ in requests.values())
    rows = [((request_id, 0), 0, num_prompt) for request_id, (num_prompt, _) in requests.items()]
    everyone = tuple((request_id, 0) for request_id in requests)
    num_steps = max(num_new for _, num_new in requests.values())
    log.step(rows, everyone if num_steps == 1 else (), padded_to=longest if padding else None)
    for done in range(1, num_steps):
        positions = {
            (one, 0): (num_prompt + done - 1, num_new > done) for one, (num_prompt, num_new) in requests.items()
        }
        log.step(
            [(seq_id, position, 1) for seq_id, (position, alive) in positions.items() if alive],
            everyone if done == num_steps - 1 else (),
            padded_to=1 if padding else None,
            dead=tuple((one, position) for one, (position, alive) in positions.items() if not alive) if padding else (),
        )


def static_log(path: Path, requests: dict[RequestId, tuple[int, int]], num_seats: int, padding: bool = True) -> Path:
    """All requests come at the start, and are served in batches of ``num_seats``."""
    log = LogWriter(path, "static", num_seats)
    for request_id, (num_prompt, _) in requests.items():
        log.add(request_id, num_prompt)
    names = list(requests)
    for first in range(0, len(names), num_seats):
        write_batch(log, {one: requests[one] for one in names[first : first + num_seats]}, padding)
    return log.close()


Arrivals = list[tuple[float, Request]]


def continuous_log(
    path: Path, arrivals: Arrivals, num_seats: int, num_blocks: int = 4096, num_host_blocks: int = 0, **options: Any
) -> Path:
    """What an engine on paper with ``num_seats`` seats writes; ``options`` are of ``ContinuousConfig``."""
    config = ContinuousConfig(
        max_num_seqs=num_seats,
        max_num_batched_tokens=num_seats + 192,
        max_model_len=num_blocks * 16,
        max_num_waiting_seqs=None,
        **options,
    )
    return served_log(path, config, arrivals, num_blocks, num_host_blocks)


def served_log(
    path: Path, config: SchedulerConfig, arrivals: Arrivals, num_blocks: int, num_host_blocks: int = 0
) -> Path:
    """An engine on paper serves (arrival, request); a step takes 4 ms and 0.1 ms for each token that it computes."""
    block_size, clock = 16, VirtualClock()
    log = StepLog(path)
    log.write(Started(config.name, asdict(config), num_blocks, block_size))
    core = EngineCore(
        make_scheduler(config, num_blocks, block_size, num_host_blocks),
        {"main": PaperExecutor(num_blocks, block_size, vocab_size=100, num_host_blocks=num_host_blocks)},
        PaperText,
        clock,
        [Recorder(log.write)],
    )
    pending = deque(sorted(arrivals, key=lambda one: one[0]))
    while pending or core.has_work:
        while pending and pending[0][0] <= clock.now_s():
            core.add(pending.popleft()[1])
        output = core.begin("main")
        if isinstance(output, Idle):
            until = [pending[0][0]] if pending else []
            clock.advance_to(min([*until, *([output.wake_at_s] if output.wake_at_s is not None else [])]))
        else:
            clock.advance_to(clock.now_s() + 0.004 + 0.0001 * output.num_computed_tokens)
            core.finish(output, core.execute(output))
    log.close()
    return path


def request(request_id: RequestId, num_prompt: int, num_new: int, num_shared: int = 0) -> Request:
    """A prompt whose first ``num_shared`` tokens all requests have, and whose others none has."""
    sampling = SamplingParams(max_tokens=num_new, ignore_eos=True)
    own = zlib.crc32(request_id.encode())
    prompt = (*range(1, num_shared + 1), *range(own, own + num_prompt - num_shared))
    return Request(request_id=request_id, prompt_token_ids=prompt, sampling=sampling)


def poisson_arrivals(seed: int, num_requests: int, rate: float, longest: int, num_shared: int = 0) -> Arrivals:
    """``num_requests`` that come at ``rate`` a second, with up to ``longest`` new tokens."""
    rng = random.Random(seed)
    now_s, made = 0.0, []
    for index in range(num_requests):
        now_s += rng.expovariate(rate)
        made.append(
            (now_s, request(f"cmpl-{index:04d}", num_shared + rng.randint(5, 400), rng.randint(4, longest), num_shared))
        )
    return made
