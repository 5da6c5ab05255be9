"""The race in this process: an ``EngineCore``, driven one step after another."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from inflight.bench.figures import Answer, Figures, Usage, figures
from inflight.bench.process import cpu_s, forget_peak, peak_bytes
from inflight.core.errors import InflightError
from inflight.core.output import MAIN_LANE, FinishReason, Idle, SchedulerOutput, StepResult
from inflight.core.request import Request
from inflight.engine.events import ChoiceDelta
from inflight.engine.loop import Engine
from inflight.workload.item import WorkItem


class OfflineRunner:
    """Runs a workload on an engine, as often as wanted, with ``num_callers`` requests in the engine at once."""

    def __init__(self, engine: Engine, workload: Sequence[WorkItem], num_callers: int) -> None:
        self._engine = engine
        self._workload = workload
        self._num_callers = num_callers
        self._used_blocks: set[int] = set()  # over all runs: their memory stays resident

    def run(self) -> Figures:
        """Run it once. Raises ``InflightError`` if a request does not end as it should."""
        core = self._engine.core
        forget_peak()
        answers: dict[str, Answer] = {}
        pending = iter(self._workload)
        num_steps = num_step_tokens = 0
        forward_s = 0.0
        cpu_before_s, start_s = cpu_s(), time.perf_counter()
        steps: list[tuple[float, list[ChoiceDelta]]] = []
        num_free = self._num_callers
        while num_free or core.has_work:
            num_free -= self._submit(pending, num_free, answers)
            if not core.has_work:
                break
            output = core.begin(MAIN_LANE)
            if not isinstance(output, SchedulerOutput):
                self._wait(output)
                continue
            result = core.execute(output)
            deltas = core.finish(output, result)
            self._engine.collector.drain()  # nobody asks for them here, and they would pile up
            steps.append((time.perf_counter(), deltas))
            num_free += sum(delta.finish_reason is not None for delta in deltas)
            num_steps += 1
            num_step_tokens += output.num_tokens
            if isinstance(result, StepResult):
                forward_s += sum(seconds for _, seconds in result.operations_s)
            for row in output.scheduled:
                self._used_blocks.update(row.block_table)
        end_s = time.perf_counter()
        usage = Usage(
            num_steps=num_steps,
            num_step_tokens=num_step_tokens,
            engine_cpu_s=cpu_s() - cpu_before_s,
            engine_peak_bytes=peak_bytes(),
            forward_s=forward_s,
            kv_bytes=len(self._used_blocks) * self._engine.info.bytes_per_block,
        )
        _hand_out(steps, answers)
        for item in self._workload:
            num_tokens = len(answers[item.item_id].arrivals_s)
            if num_tokens != item.max_tokens:
                raise InflightError(f"request {item.item_id} got {num_tokens} tokens of {item.max_tokens}")
        return figures(self._workload, [answers[item.item_id] for item in self._workload], start_s, end_s, usage)

    def _wait(self, idle: Idle) -> None:
        """Let the window of a batch close. A batch without one is not filled by callers who all wait for answers."""
        if idle.wake_at_s is None:
            self._engine.core.flush()
        else:
            time.sleep(max(0.0, idle.wake_at_s - time.monotonic()))

    def _submit(self, pending: Iterator[WorkItem], at_most: int, answers: dict[str, Answer]) -> int:
        """Submit requests while there are callers for them; returns how many."""
        num_submitted = 0
        while num_submitted < at_most and (item := next(pending, None)) is not None:
            answers[item.item_id] = Answer(time.perf_counter(), token_ids=[])
            self._engine.core.add(
                Request(
                    request_id=item.item_id,
                    prompt_token_ids=item.prompt_token_ids,
                    sampling=item.sampling,
                    arrival_s=time.monotonic(),
                )
            )
            num_submitted += 1
        return num_submitted


def _hand_out(steps: list[tuple[float, list[ChoiceDelta]]], answers: dict[str, Answer]) -> None:
    for at_s, deltas in steps:
        for delta in deltas:
            request_id = delta.seq_id[0]
            if delta.finish_reason is FinishReason.ERROR:
                raise InflightError(f"request {request_id} failed: {delta.error}")
            answer = answers[request_id]
            answer.arrivals_s += [at_s] * len(delta.tokens)
            answer.texts.append(delta.text)
            if answer.token_ids is not None:
                answer.token_ids += [token.token_id for token in delta.tokens]
