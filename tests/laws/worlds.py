"""Random worlds of every family of schedulers. A world says what happens, in ticks; ``play.py`` plays it.

Continuous worlds tick once a step, those of the request-level families in eighths of a second, so that every time is
exact and a step takes several ticks.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from fakes import Failure
from inflight.core.request import Request
from inflight.schedulers.config import DynamicConfig, RequestLevelConfig, StaticConfig
from laws.continuous_worlds import contiguous_world, continuous_world, reuse_world
from laws.world import TICKS_PER_S, Abort, World, random_request

__all__ = ["FAMILIES", "TICKS_PER_S", "Abort", "World", "random_world"]

WINDOWS_MS = (0, 125, 250, 500, 500, 1000, 3000)  # whole ticks


def static_world(rng: random.Random) -> World:
    return _request_level_world(
        rng,
        lambda common: StaticConfig(
            batch_size=rng.choice([1, 2, 3, 4, 5]), fill_timeout_ms=rng.choice([None, None, *WINDOWS_MS]), **common
        ),
    )


def dynamic_world(rng: random.Random) -> World:
    def config(common: dict) -> DynamicConfig:
        max_batch_size = rng.choice([1, 2, 3, 4, 5, 6])
        max_len = common["max_model_len"]
        sizes = range(1, max_batch_size + 1)
        return DynamicConfig(
            max_batch_size=max_batch_size,
            max_wait_ms=rng.choice(WINDOWS_MS),
            max_tokens_in_batch=rng.choice([None, rng.randint(max(2, max_len * 2 // 3), 5 * max_len)]),
            preferred_batch_size=rng.choice([(), (), tuple(rng.sample(sizes, rng.randint(1, min(2, len(sizes)))))]),
            length_bins=rng.choice([(), (), (2,), (3, 1), (1, 2, 6)]),
            **common,
        )

    return _request_level_world(rng, config)


FAMILIES: dict[str, Callable[[random.Random], World]] = {
    "continuous": continuous_world,
    "contiguous": contiguous_world,
    "reuse": reuse_world,
    "static": static_world,
    "dynamic": dynamic_world,
}


def random_world(rng: random.Random, family: str = "continuous") -> World:
    return FAMILIES[family](rng)


def _request_level_world(rng: random.Random, config_of: Callable[[dict], RequestLevelConfig]) -> World:
    block_size = rng.randint(1, 4)
    common = {
        "max_model_len": rng.randint(3, 20),
        "padding": rng.random() < 0.8,
        "kv_allocator": rng.choice(["paged", "paged", "contiguous"]),
        "scheduling_policy": rng.choice(["fcfs", "fcfs", "priority"]),
        "priority_ageing_s": rng.choice([0.5, 4.0, 1000.0]),
        "max_num_waiting_seqs": rng.choice([None, None, None, 6]),
    }
    config = config_of(common)
    last_arrival = rng.choice([2, 8, 32])
    arrivals: dict[int, list[Request]] = {}
    aborts: dict[int, list[Abort]] = {}
    for index in range(rng.randint(4, 12)):
        tick = rng.choice([0, rng.randint(0, last_arrival), rng.randint(0, last_arrival)])
        arrivals.setdefault(tick, []).append(random_request(rng, f"r{index}", config.max_model_len))
        if rng.random() < 0.3:
            aborts.setdefault(tick + rng.choice([rng.randint(0, 6), rng.randint(0, 30)]), []).append(
                Abort(f"r{index}", mid_step=False)
            )
    world = World(
        num_blocks=0,
        block_size=block_size,
        config=config,
        arrivals=arrivals,
        aborts=aborts,
        failures={
            rng.randint(0, 25): rng.choice([Failure(after_rows=rng.randint(0, 2)), Failure(row=rng.randint(0, 2))])
            for _ in range(rng.choice([0, 0, 1, 3]))
        },
        flushes=rng.choice([(), (), (rng.randint(0, last_arrival),)]),
        durations=tuple(rng.randint(1, 3) for _ in range(rng.randint(1, 4))),
        taken_in_flight=rng.random() < 0.75,
    )
    for_one = world.blocks_of(config.max_model_len)
    num_blocks = for_one + rng.choice([0, rng.randint(0, for_one), rng.randint(1, 5) * for_one, 5 * for_one])
    return replace(world, num_blocks=num_blocks + world.num_scratch)
