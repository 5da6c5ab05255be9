"""One run of one variant without a model: the same scheduler in virtual time, steps as long as their cost says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from inflight.assemble import scheduler_over
from inflight.bench.call import Call
from inflight.bench.outcome import Outcome
from inflight.compare.machine import StepCost
from inflight.compare.run import Run, in_order, start_log
from inflight.core.output import Stop
from inflight.core.request import TokenId
from inflight.engine.clock import VirtualClock
from inflight.engine.core import EngineCore
from inflight.engine.recorder import Added, Recorder, Updated, read_step_log
from inflight.schedulers.config import SchedulerConfig
from inflight.sim.executor import SimExecutor
from inflight.sim.loop import simulate
from inflight.workload.item import WorkItem


def run_simulated(step_cost: StepCost, scheduler_config: SchedulerConfig, items: Sequence[WorkItem], log: Path) -> Run:
    """Run the items, from 0 s of virtual time on; every token is 0. Raises ``OSError`` if the log cannot be written."""
    machine = step_cost.machine
    scheduler = scheduler_over(machine.capacity, scheduler_config)
    executor = SimExecutor(machine.capacity, step_cost.cost.duration_s, copies_s=step_cost.cost.copies_s)
    step_log = start_log(log, scheduler_config, machine)
    clock = VirtualClock()
    core = EngineCore(
        scheduler, dict.fromkeys(scheduler.lanes, executor), lambda _: _NoText(), clock, [Recorder(step_log.write)]
    )
    try:
        simulate(core, scheduler.lanes, clock, [item.request(item.arrival_s) for item in items])
    finally:
        step_log.close()
    return Run(in_order(outcomes_of_log(log), items), log)


def outcomes_of_log(log: Path) -> list[Outcome]:
    """What callers saw of each request that has ended, as its step log tells it; in the order of their ends."""
    calls: dict[str, Call] = {}
    done: list[Outcome] = []
    for line in read_step_log(log):
        if isinstance(line, Added):
            request = line.request
            call = Call(request.request_id, len(request.prompt_token_ids), request.arrival_s, request.arrival_s)
            calls[request.request_id] = call
            if line.rejected is not None:
                done.append(call.refused(line.now_s, line.rejected))
        elif isinstance(line, Updated):
            for event in line.events:
                if (outcome := calls[event.seq_id[0]].take(event, line.now_s)) is not None:
                    done.append(outcome)
    return done


class _NoText:
    """Nobody reads what a simulation says."""

    def push(self, token_ids: Sequence[TokenId]) -> Stop | None:
        return None

    def take(self, final: bool) -> str:
        return ""
