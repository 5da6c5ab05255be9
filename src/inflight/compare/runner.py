"""What the variants run on: the model, loaded once, or the cost of its steps."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tqdm import tqdm

from inflight.bench.outcome import Outcome
from inflight.compare import machine as machines
from inflight.compare.config import CompareConfig
from inflight.compare.machine import Machine, StepCost
from inflight.compare.run import Progress, Run, run_real
from inflight.compare.simulated import run_simulated
from inflight.config import LoadConfig
from inflight.engine.recorder import read_step_log
from inflight.hub.resolve import resolve
from inflight.schedulers.config import DynamicConfig, SchedulerConfig
from inflight.text.tokenizer import Tokenizer
from inflight.workload.item import WorkItem
from inflight.workload.trace import Encode

WARM_UP_TOKENS = 8


# The scheduler, the items, the step log to write, who is told of each outcome, and how many callers there are.
RunOne = Callable[[SchedulerConfig, Sequence[WorkItem], Path, Progress | None, int | None], Run]


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs items under any scheduler; ``encode`` makes token ids of a text, where a model is loaded."""

    machine: Machine
    run_one: RunOne
    encode: Encode | None = None
    step_cost: StepCost | None = None  # None: the model is run

    def run(
        self,
        scheduler: SchedulerConfig,
        items: Sequence[WorkItem],
        log: Path,
        what: str,
        max_concurrency: int | None = None,
    ) -> Run:
        """Run the items, with a progress bar on stderr if that is a terminal."""
        with tqdm(total=len(items), desc=what, unit="req", file=sys.stderr, disable=None) as bar:

            def progress(_: Outcome) -> None:
                bar.update()

            return self.run_one(scheduler, items, log, progress, max_concurrency)

    def run_whole(
        self,
        scheduler: SchedulerConfig,
        items: Sequence[WorkItem],
        log: Path,
        what: str,
        max_concurrency: int | None = None,
    ) -> Run:
        """The same; a Ctrl-C that has cut it short is raised again."""
        run = self.run(scheduler, items, log, what, max_concurrency)
        if len(run.outcomes) < len(items):
            raise KeyboardInterrupt
        return run


@contextmanager
def open_runner(config: CompareConfig, settings: LoadConfig) -> Iterator[Runner]:
    """Load the model, or read the cost of its steps; close it in the end.

    Raises ``ValueError`` for settings that do not fit it, ``InflightError`` if it cannot be loaded, ``OSError`` for a
    file that cannot be read.
    """
    if config.step_cost is not None:
        step_cost = machines.read_step_cost(config.step_cost)
        yield _simulator(step_cost, None)
        return
    from inflight.runtime.load import load_executor

    files = resolve(settings.model)
    tokenizer = Tokenizer.load(files.path)
    executor = load_executor(files.path, settings.runtime)
    try:
        machine = machines.machine_of(executor, files.name, config)
        yield Runner(machine, partial(run_real, executor, tokenizer, machine), tokenizer.encode)
    finally:
        executor.close()


def made_ready(
    runner: Runner, config: CompareConfig, items: Sequence[WorkItem], continuous: SchedulerConfig, steps: Path
) -> Runner:
    """Warm the model up; where its steps are to be simulated, measure them and return a simulator of it."""
    if runner.step_cost is not None:
        return runner
    few = [replace(item, max_tokens=min(item.max_tokens, WARM_UP_TOKENS)) for item in items[: config.num_seats]]
    runner.run_whole(continuous, few, steps / "warm_up.jsonl", "warm-up").log.unlink()
    if not config.simulated_steps:
        return runner
    # Mixed steps, and rectangles: what the variants consist of.
    dynamic = DynamicConfig(max_batch_size=config.num_seats, max_wait_ms=0.0, max_num_waiting_seqs=None)
    rectangles = machines.decided(dynamic, runner.machine, continuous.max_model_len or 0)
    lines = []
    for scheduler in (continuous, rectangles):
        log = steps / f"calibration_{scheduler.name}.jsonl"
        runner.run_whole(scheduler, items[: 3 * config.num_seats], log, f"calibration, {scheduler.name}")
        lines += list(read_step_log(log))
    return _simulator(machines.fit(runner.machine, lines), runner.encode)


def _simulator(step_cost: StepCost, encode: Encode | None) -> Runner:
    def run_one(
        scheduler: SchedulerConfig, items: Sequence[WorkItem], log: Path, _: Progress | None, __: int | None
    ) -> Run:
        return run_simulated(step_cost, scheduler, items, log)

    return Runner(step_cost.machine, run_one, encode, step_cost)
