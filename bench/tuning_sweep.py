"""One setting on one workload in the simulator, and whole sweeps of them: figures, nothing measured by a clock."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inflight.core.output import SchedulerOutput
from inflight.engine.clock import VirtualClock
from inflight.engine.core import EngineCore
from inflight.engine.executor import KVCapacity
from inflight.explain.tuning import Row, Setting
from inflight.metrics.collect import Collector
from inflight.metrics.delta import RequestRecord
from inflight.metrics.summary import percentile
from inflight.schedulers.config import ContinuousConfig, SchedulerConfig
from inflight.schedulers.registry import CONFIGS, make_scheduler
from inflight.sim.cost import LinearStepCost
from inflight.sim.executor import SimExecutor
from inflight.sim.loop import simulate
from inflight.workload.build import build_workload
from inflight.workload.config import WorkloadConfig
from inflight.workload.item import WorkItem

Figures = dict[str, float | None]

BLOCK_SIZE = 16
MAX_MODEL_LEN = 1536  # of every sweep that does not try others
VOCAB_SIZE = 1024  # nobody reads the tokens
SEED = 0

# Median, p99, lowest, highest, in tokens: (prompts, outputs). Long tails, as real traffic has them.
WORKLOADS = {
    "chat": ("lognormal:96,768,8,1024", "lognormal:48,384,4,512"),
    "short": ("lognormal:24,128,4,256", "lognormal:8,48,1,64"),
    "long_prompts": ("lognormal:96,768,8,1024", "lognormal:8,48,1,64"),
    "alike": ("96", "48"),
    "short_alike": ("24", "8"),
}
REFERENCE = ContinuousConfig(
    max_num_seqs=64, max_num_batched_tokens=256, max_model_len=MAX_MODEL_LEN, max_num_waiting_seqs=None
)


class NoText:
    """Nobody reads what a simulation says."""

    def push(self, token_ids: Sequence[int]) -> None:
        return None

    def take(self, final: bool) -> str:
        return ""


class Watch:
    """An observer of what the metrics do not hold: the KV memory at the start of each step, and how long steps took."""

    def __init__(self, stats: Callable[[], Any]) -> None:
        self._stats = stats
        self.allocated: list[float] = []  # share of all blocks
        self.unused: list[float] = []  # share of the allocated slots
        self.busy_s = 0.0

    def on_add(self, request, rejected, now_s) -> None: ...

    def on_abort(self, request_id, now_s) -> None: ...

    def on_flush(self, now_s) -> None: ...

    def on_schedule(self, output: SchedulerOutput, now_s) -> None:
        stats = self._stats()
        num_allocated = stats.num_blocks - stats.num_free_blocks
        self.allocated.append(num_allocated / stats.num_blocks)
        if num_allocated:
            self.unused.append(1 - stats.num_stored_tokens / (num_allocated * BLOCK_SIZE))

    def on_update(self, output, result, stops, events, now_s) -> None:
        self.busy_s += result.duration_s


def run_setting(config: SchedulerConfig, num_blocks: int, cost: LinearStepCost, items: Sequence[WorkItem]) -> Figures:
    """The figures of one run; times in seconds. A figure that is not defined is None."""
    clock, collector = VirtualClock(), Collector(num_seats=config.num_seats)
    scheduler = make_scheduler(config, num_blocks, BLOCK_SIZE)
    watch = Watch(scheduler.stats)
    executor = SimExecutor(KVCapacity(num_blocks, BLOCK_SIZE, 0), cost.duration_s)
    core = EngineCore(
        scheduler, dict.fromkeys(scheduler.lanes, executor), lambda _: NoText(), clock, [collector, watch]
    )
    simulate(core, scheduler.lanes, clock, [item.request(item.arrival_s) for item in items])
    delta = collector.drain()
    records = delta.ended
    arrivals_s = {item.item_id: item.arrival_s for item in items}
    end_s = max((arrivals_s[one.request_id] + one.e2e_s for one in records), default=0.0)
    num_output = sum(one.num_output_tokens for one in records)
    computed, seats = delta.slots.shares()
    return {
        "total_s": end_s,
        "output_tokens_per_s": num_output / end_s if end_s else None,
        "output_tokens_per_busy_s": num_output / watch.busy_s if watch.busy_s else None,
        "num_steps": len(delta.batch_rows),
        "mean_batch": statistics.fmean(delta.batch_rows) if delta.batch_rows else None,
        **_two("queue", [one.queue_s for one in records]),
        **_two("ttft", [one.ttft_s for one in records]),
        **_two("tpot", [_tpot_s(one) for one in records]),
        **_two("itl", [*delta.itl_s, *delta.itl_preempted_s] if isinstance(config, ContinuousConfig) else []),
        **_two("e2e", [one.e2e_s for one in records]),
        "preemptions": delta.num_preemptions,
        "rejected": len(delta.rejected),
        **{f"{name}_share": float(share) for name, share in computed.items()},
        "empty_share": float(seats["empty"]),
        "kv_peak": max(watch.allocated, default=None),
        "kv_mean": statistics.fmean(watch.allocated) if watch.allocated else None,
        "kv_unused": statistics.fmean(watch.unused) if watch.unused else None,
    }


def _tpot_s(record: RequestRecord) -> float | None:
    """As it was computed, also where a batch withholds it; None for one token."""
    if record.num_output_tokens < 2 or record.computed_e2e_s is None or record.computed_ttft_s is None:
        return None
    return (record.computed_e2e_s - record.computed_ttft_s) / (record.num_output_tokens - 1)


def _two(name: str, samples: Sequence[float | None]) -> dict[str, float | None]:
    ordered = sorted(sample for sample in samples if sample is not None)
    return {f"{name}_p50_s": percentile(ordered, 0.5), f"{name}_p99_s": percentile(ordered, 0.99)}


@dataclass(frozen=True)
class Traffic:
    """Requests of one kind, and how many of them a second continuous batching can serve."""

    workload: str
    num_requests: int
    capacity_per_s: float

    def items(self, load: float) -> list[WorkItem]:
        """The same requests, arriving as a Poisson process at ``load`` times the capacity; infinite: all at once."""
        return draw(*WORKLOADS[self.workload], self.num_requests, load * self.capacity_per_s)


def draw(prompts: str, outputs: str, num_requests: int, rate_per_s: float, **more: Any) -> list[WorkItem]:
    """Requests from the seed; lengths do not depend on the rate."""
    config = WorkloadConfig(
        num_requests=num_requests,
        prompt_tokens=prompts,
        output_tokens=outputs,
        request_rate=rate_per_s,
        seed=SEED,
        **more,
    )
    return build_workload(config, VOCAB_SIZE, MAX_MODEL_LEN).items


def traffic(workload: str, num_requests: int, cost: LinearStepCost) -> Traffic:
    """The capacity is requests/s with all of them there from the start, on ``REFERENCE`` with ample memory."""
    items = draw(*WORKLOADS[workload], num_requests, math.inf)
    total_s = run_setting(REFERENCE, 65536, cost, items)["total_s"]
    return Traffic(workload, num_requests, num_requests / total_s)


def config_of(row: Row, value: Setting) -> tuple[SchedulerConfig, int]:
    """The scheduler's configuration and the number of KV blocks with the row's parameter at ``value``."""
    values: dict[str, Any] = {"max_model_len": MAX_MODEL_LEN, "max_num_waiting_seqs": None, **row.fixed}
    if row.parameter == "num_gpu_blocks_override":
        return CONFIGS[row.family](**values), int(value)
    return CONFIGS[row.family](**{**values, row.parameter: value}), row.num_blocks


def sweep(row: Row, cost: LinearStepCost, traffics: Mapping[str, Traffic]) -> dict[str, list[Figures]]:
    """For each traffic that the row's claims are about, by its key: the figures at each value, in their order."""
    wanted = dict.fromkeys(row.traffic(claim) for claim in row.claims)
    return {
        traffic_key(workload, load): [
            run_setting(*config_of(row, value), cost, traffics[workload].items(load)) for value in row.values
        ]
        for workload, load in wanted
    }


def traffic_key(workload: str, load: float) -> str:
    """How a result names its traffic."""
    return f"{workload} at {load:g}"
