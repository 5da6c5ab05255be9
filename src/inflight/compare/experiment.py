"""What is run: one model, one workload, every variant of batching on it, one after the other."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from inflight.bench.outcome import run_duration_s
from inflight.compare import machine as machines
from inflight.compare.config import CompareConfig, read_workload_config
from inflight.compare.folder import STEPS, prepare
from inflight.compare.machine import Machine, StepCost
from inflight.compare.run import Run
from inflight.compare.runner import Runner, made_ready, open_runner
from inflight.compare.variants import Variant, continuous_config, variants
from inflight.config import LoadConfig
from inflight.engine.recorder import read_step_log
from inflight.schedulers.config import ContinuousConfig
from inflight.sim.cost import LinearStepCost, fit_step_cost
from inflight.workload.build import Workload, build_workload
from inflight.workload.item import WorkItem

NUM_ALONE = 6  # requests that are run by themselves, to know what a request takes without company


@dataclass(frozen=True, slots=True)
class Capacity:
    """What continuous batching with chunked prefill serves if all requests are there from the start."""

    requests_per_s: float
    output_tokens_per_s: float


@dataclass(frozen=True, slots=True)
class Experiment:
    """Everything that was run; ``runs`` by the variant's name, only of variants that were run to their end."""

    machine: Machine
    continuous: ContinuousConfig  # what the offered load is measured against
    variants: list[Variant]
    workload: Workload
    max_model_len: int
    capacity: Capacity
    alone: LinearStepCost  # of a step that one request has for itself
    step_cost: StepCost | None  # None: the model was run
    runs: dict[str, list[Run]] = field(default_factory=dict)
    interrupted: bool = False


def experiment(config: CompareConfig, settings: LoadConfig, workload_values: Mapping[str, Any]) -> Experiment:
    """Load, measure the capacity, and run every variant. The folder is emptied once all settings are known to be right.

    Ctrl-C ends it: what was complete by then is in the result; before the first variant is, it is raised. Raises
    ``ValueError`` for settings and work that cannot be run, ``OSError`` for files, ``InflightError`` if the model
    cannot be loaded or a scheduler never runs a request.
    """
    workload_config, load = read_workload_config(config, workload_values)
    chosen, reference, steps = variants(config), continuous_config(config), config.out / STEPS
    with open_runner(config, settings) as runner:
        machine = runner.machine
        max_model_len = machines.shared_max_model_len(machine, [reference, *(one.scheduler for one in chosen)])
        decided = [replace(one, scheduler=machines.decided(one.scheduler, machine, max_model_len)) for one in chosen]
        continuous = machines.decided_continuous(reference, machine, max_model_len)
        workload = build_workload(workload_config, machine.vocab_size, max_model_len, runner.encode)
        prepare(config.out)
        at_once = [replace(item, arrival_s=0.0) for item in workload.items]
        runner = made_ready(runner, config, at_once, continuous, steps)
        alone = _alone(runner, at_once, continuous, steps)
        capacity = _capacity(runner, at_once, continuous, steps)
        if load is not None:
            workload_config = replace(workload_config, request_rate=load * capacity.requests_per_s)
            workload = build_workload(workload_config, machine.vocab_size, max_model_len, runner.encode)
        todo = Experiment(
            machine, continuous, decided, workload, max_model_len, capacity, alone, step_cost=runner.step_cost
        )
        return _run_variants(todo, runner, config.repeats, steps)


def _alone(runner: Runner, items: Sequence[WorkItem], continuous: ContinuousConfig, steps: Path) -> LinearStepCost:
    """What a step costs that one request has for itself, from a few that are run one after the other."""
    if runner.step_cost is not None:
        return runner.step_cost.cost
    ordered = sorted(items, key=lambda item: item.max_tokens)
    few = ordered[:: max(1, len(ordered) // NUM_ALONE)][:NUM_ALONE]
    run = runner.run_whole(continuous, few, steps / "alone.jsonl", "alone", max_concurrency=1)
    try:
        return fit_step_cost(read_step_log(run.log))
    except ValueError:  # too few steps to fit anything to: slowdowns are not defined then
        return LinearStepCost(0.0, 0.0, 0.0)


def _capacity(runner: Runner, items: Sequence[WorkItem], continuous: ContinuousConfig, steps: Path) -> Capacity:
    run = runner.run_whole(continuous, items, steps / "capacity.jsonl", "capacity")
    duration_s = run_duration_s(run.outcomes)
    if not duration_s > 0:
        raise ValueError("steps that take no time have no capacity: is the step cost zero?")
    num_tokens = sum(outcome.num_output_tokens for outcome in run.outcomes)
    return Capacity(len(items) / duration_s, num_tokens / duration_s)


def _run_variants(todo: Experiment, runner: Runner, repeats: int, steps: Path) -> Experiment:
    """All variants once, then again, so that a machine that changes its speed does it to all."""
    runs: dict[str, list[Run]] = {}
    items = todo.workload.items
    for repeat in range(1, repeats + 1):
        for variant in todo.variants:
            suffix = f".{repeat}" if repeats > 1 else ""
            what = variant.title + (f", run {repeat} of {repeats}" if repeats > 1 else "")
            run = runner.run(variant.scheduler, items, steps / f"{variant.name}{suffix}.jsonl", what)
            if len(run.outcomes) < len(items):
                run.log.unlink()
                if not runs:
                    raise KeyboardInterrupt
                return replace(todo, runs=runs, interrupted=True)
            runs.setdefault(variant.name, []).append(run)
            sys.stderr.write(f"{what}: {len(items)} requests in {run_duration_s(run.outcomes):.2f} s\n")
    return replace(todo, runs=runs)
