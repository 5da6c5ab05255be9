"""One run of one variant without a model: the same scheduler in virtual time, steps as long as their cost says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from inflight.bench.outcome import Arrival, ErrorKind, Outcome, RequestError
from inflight.compare.machine import StepCost
from inflight.compare.run import Run, in_order, start_log
from inflight.core.output import FinishReason, Stop, TokenEvent
from inflight.core.request import Request, TokenId
from inflight.engine.clock import VirtualClock
from inflight.engine.core import EngineCore
from inflight.engine.recorder import Added, Recorder, Updated, read_step_log
from inflight.schedulers.config import SchedulerConfig
from inflight.schedulers.registry import make_scheduler
from inflight.sim.executor import SimExecutor
from inflight.sim.loop import simulate
from inflight.workload.item import WorkItem


def run_simulated(step_cost: StepCost, scheduler_config: SchedulerConfig, items: Sequence[WorkItem], log: Path) -> Run:
    """Run the items, from 0 s of virtual time on; every token is 0. Raises ``OSError`` if the log cannot be written."""
    machine = step_cost.machine
    scheduler = make_scheduler(scheduler_config, machine.num_blocks, machine.block_size)
    executor = SimExecutor(machine.capacity, step_cost.cost.duration_s)
    step_log = start_log(log, scheduler_config, machine)
    clock = VirtualClock()
    core = EngineCore(
        scheduler, dict.fromkeys(scheduler.lanes, executor), lambda _: _NoText(), clock, [Recorder(step_log.write)]
    )
    requests = [
        Request(
            request_id=item.item_id,
            prompt_token_ids=item.prompt_token_ids,
            sampling=item.sampling,
            arrival_s=item.arrival_s,
        )
        for item in items
    ]
    try:
        simulate(core, scheduler.lanes, clock, requests)
    finally:
        step_log.close()
    return Run(in_order(outcomes_of_log(log), items), log)


def outcomes_of_log(log: Path) -> list[Outcome]:
    """What callers saw of each request that has ended, as its step log tells it; in the order of their ends."""
    calls: dict[str, _Call] = {}
    done = []
    for line in read_step_log(log):
        if isinstance(line, Added):
            call = calls[line.request.request_id] = _Call(line.request)
            if line.rejected is not None:
                done.append(call.outcome(line.now_s, RequestError(ErrorKind.REFUSED, line.rejected)))
        elif isinstance(line, Updated):
            for event in line.events:
                call = calls[event.seq_id[0]]
                call.take(event, line.now_s)
                if event.finish_reason is not None:
                    failed = event.finish_reason in (FinishReason.ERROR, FinishReason.ABORT)
                    error = RequestError(ErrorKind.FAILED, event.error or "given up") if failed else None
                    done.append(call.outcome(line.now_s, error))
    return done


@dataclass(slots=True)
class _Call:
    request: Request
    arrivals: list[Arrival] = field(default_factory=list)
    token_ids: list[TokenId] = field(default_factory=list)

    def take(self, event: TokenEvent, now_s: float) -> None:
        if event.tokens:
            self.arrivals.append(Arrival(now_s, len(event.tokens)))
            self.token_ids += [token.token_id for token in event.tokens]

    def outcome(self, end_s: float, error: RequestError | None) -> Outcome:
        return Outcome(
            item_id=self.request.request_id,
            num_prompt_tokens=len(self.request.prompt_token_ids),
            scheduled_s=self.request.arrival_s,
            due_s=self.request.arrival_s,
            sent_s=self.request.arrival_s,
            arrivals=tuple(self.arrivals),
            end_s=end_s,
            token_ids=tuple(self.token_ids),
            error=error,
        )


class _NoText:
    """Nobody reads what a simulation says."""

    def push(self, token_ids: Sequence[TokenId]) -> Stop | None:
        return None

    def take(self, final: bool) -> str:
        return ""
