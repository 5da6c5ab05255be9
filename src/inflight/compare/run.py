"""One run of one variant on the model, in real time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from inflight.assemble import engine_around, scheduler_over, start_step_log
from inflight.bench.in_process import run_in_process
from inflight.bench.outcome import Outcome
from inflight.compare.machine import Machine
from inflight.compare.timed import TimedScheduler
from inflight.core.errors import InvariantViolation
from inflight.core.output import MAIN_LANE, SchedulerOutput
from inflight.engine.core import EngineCore
from inflight.engine.recorder import StepLog
from inflight.schedulers.config import SchedulerConfig
from inflight.text.tokenizer import Tokenizer
from inflight.workload.item import WorkItem

if TYPE_CHECKING:
    from inflight.runtime.runner import ModelExecutor

Progress = Callable[[Outcome], None]


@dataclass(frozen=True, slots=True)
class Run:
    """What callers saw, in the order of the items, and the step log. Interrupted, it has fewer outcomes than items."""

    outcomes: list[Outcome]
    log: Path
    scheduler_s: float | None = None  # seconds in the scheduler; None: simulated


def run_real(
    executor: ModelExecutor,
    tokenizer: Tokenizer,
    machine: Machine,
    scheduler_config: SchedulerConfig,
    items: Sequence[WorkItem],
    log: Path,
    progress: Progress | None = None,
    max_concurrency: int | None = None,
) -> Run:
    """Run the items on the model, in real time, under a scheduler of their own.

    The executor can be used again, unless the run was interrupted. Raises ``OSError`` if the step log cannot be
    written, ``InflightError`` if the scheduler never runs a request.
    """
    scheduler = TimedScheduler(scheduler_over(machine.capacity, scheduler_config))
    step_log = start_log(log, scheduler_config, machine)
    engine = engine_around(
        executor, scheduler, scheduler_config, tokenizer, step_log, machine.model, notes=machine.notes
    )
    try:
        with engine.recent.saved_if_broken():
            outcomes = run_in_process(engine, items, max_concurrency, progress)
            if len(outcomes) == len(items):
                _leave_clean(engine.core, executor, items)
    finally:
        step_log.close()  # and not the engine: the executor is the next one's
    return Run(in_order(outcomes, items), log, scheduler.spent_s)


def start_log(path: Path, config: SchedulerConfig, machine: Machine) -> StepLog:
    """A new step log. Raises ``OSError`` if it cannot be written."""
    path.unlink(missing_ok=True)  # a step log that is there is continued
    return start_step_log(path, config, machine.capacity)


def in_order(outcomes: Sequence[Outcome], items: Sequence[WorkItem]) -> list[Outcome]:
    """The outcomes in the order of their items."""
    by_id = {outcome.item_id: outcome for outcome in outcomes}
    return [by_id[item.item_id] for item in items if item.item_id in by_id]


def _leave_clean(core: EngineCore, executor: ModelExecutor, items: Sequence[WorkItem]) -> None:
    """End what the executor remembers of the last rows, which no further step would; no block may be held."""
    stats = core.stats()
    if stats.num_free_blocks != stats.num_blocks:
        raise InvariantViolation(f"a run has ended and {stats.num_blocks - stats.num_free_blocks} KV blocks are held")
    ended = tuple((item.item_id, 0) for item in items)
    executor.execute(SchedulerOutput(MAIN_LANE, step=0, scheduled=(), finished=ended))
