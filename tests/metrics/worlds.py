"""A random world on a real scheduler and a paper executor, with everything that watches an engine around it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from fakes import PaperExecutor, PaperText
from inflight.core.errors import Rejected
from inflight.core.output import SchedulerStats
from inflight.engine.clock import VirtualClock
from inflight.engine.core import EngineCore
from inflight.engine.recorder import Line, Recorder
from inflight.metrics.collect import Collector
from inflight.metrics.delta import MetricsDelta
from inflight.metrics.prometheus import PrometheusMetrics
from inflight.metrics.report import Reporter
from inflight.schedulers.registry import make_scheduler
from laws.worlds import World, random_world

BYTES_PER_BLOCK = 640


@dataclass
class Watched:
    """What was seen of a world, from its first step to the end of its last request."""

    world: World
    num_seats: int
    lines: list[Line] = field(default_factory=list)
    deltas: list[MetricsDelta] = field(default_factory=list)
    stats: list[SchedulerStats] = field(default_factory=list)  # after each turn
    metrics: PrometheusMetrics = field(default_factory=PrometheusMetrics)


def watch(seed: int, family: str = "continuous") -> Watched:
    world = random_world(random.Random(seed), family)
    seen = Watched(world, world.config.num_seats)
    seen.metrics.set_block_size(world.block_size, BYTES_PER_BLOCK)
    reporter, collector = Reporter(seen.metrics), Collector(num_seats=seen.num_seats)
    executor = PaperExecutor(
        world.num_blocks,
        world.block_size,
        failure=lambda output: world.failures.get(output.step),
        num_host_blocks=world.num_host_blocks,
        cost=lambda output: world.costs[output.step % len(world.costs)],
    )
    core = EngineCore(
        make_scheduler(world.config, world.num_blocks, world.block_size, world.num_host_blocks),
        {"main": executor},
        PaperText,
        VirtualClock(),
        [collector, Recorder(seen.lines.append)],
    )
    turn = 0
    while turn <= world.last_event or core.has_work:
        for request in world.arrivals.get(turn, ()):
            try:
                core.add(request)
            except Rejected:
                continue
        for abort in world.aborts.get(turn, ()):
            core.abort(abort.request_id)
        core.step()
        seen.deltas.append(collector.drain())
        seen.stats.append(core.stats())
        reporter(seen.deltas[-1], seen.stats[-1])
        turn += 1
    return seen
