"""The race in this process: a workload, all of it there from the start, and what its steps took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from inflight.bench.figures import Answer, Figures, Usage, figures
from inflight.bench.in_process import run_in_process
from inflight.bench.outcome import Outcome
from inflight.bench.process import cpu_s, forget_peak, peak_bytes
from inflight.core.errors import InflightError, StepFailed
from inflight.core.output import SchedulerOutput, StepResult
from inflight.engine.loop import Engine
from inflight.workload.item import WorkItem


class OfflineRunner:
    """Runs a workload on an engine, as often as wanted, with ``num_callers`` requests in the engine at once."""

    def __init__(self, engine: Engine, workload: Sequence[WorkItem], num_callers: int) -> None:
        self._engine = engine
        self._workload = [replace(item, arrival_s=0.0) for item in workload]
        self._num_callers = num_callers
        self._used_blocks: set[int] = set()  # over all runs: their memory stays resident

    def run(self) -> Figures:
        """Run it once. Raises ``InflightError`` if a request does not end as it should, and ``KeyboardInterrupt``."""
        num_steps = num_step_tokens = 0
        forward_s = 0.0

        def count(output: SchedulerOutput, result: StepResult | StepFailed, at_s: float) -> None:
            nonlocal num_steps, num_step_tokens, forward_s
            num_steps += 1
            num_step_tokens += output.num_tokens
            if isinstance(result, StepResult):
                forward_s += sum(seconds for _, seconds in result.operations_s)
            for row in output.scheduled:
                self._used_blocks.update(row.block_table)

        forget_peak()
        cpu_before_s = cpu_s()
        outcomes = run_in_process(self._engine, self._workload, self._num_callers, on_step=count)
        usage = Usage(
            num_steps=num_steps,
            num_step_tokens=num_step_tokens,
            engine_cpu_s=cpu_s() - cpu_before_s,
            engine_peak_bytes=peak_bytes(),
            forward_s=forward_s,
            kv_bytes=len(self._used_blocks) * self._engine.info.bytes_per_block,
        )
        if len(outcomes) < len(self._workload):
            raise KeyboardInterrupt
        by_id = {outcome.item_id: outcome for outcome in outcomes}
        answers = [_answer(item, by_id[item.item_id]) for item in self._workload]
        start_s, end_s = min(outcome.sent_s for outcome in outcomes), max(outcome.end_s for outcome in outcomes)
        return figures(self._workload, answers, start_s, end_s, usage)


def _answer(item: WorkItem, outcome: Outcome) -> Answer:
    if outcome.error is not None:
        raise InflightError(f"request {item.item_id} failed: {outcome.error.message}")
    if outcome.num_output_tokens != item.max_tokens:
        raise InflightError(f"request {item.item_id} got {outcome.num_output_tokens} tokens of {item.max_tokens}")
    arrivals_s = [arrival.at_s for arrival in outcome.arrivals for _ in range(arrival.num_tokens)]
    return Answer(outcome.sent_s, arrivals_s, [outcome.text], list(outcome.token_ids or ()))
