"""Random worlds: a scheduler's limits, its memory, and callers who come, give up and meet failing steps.

A world says what happens, in ticks of its family; ``play.py`` plays it. Continuous worlds tick once a step, those of
the request-level families in eighths of a second, so that every time is exact and a step takes several ticks.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from fakes import Failure
from inflight.core.request import Request, SamplingParams
from inflight.schedulers.config import (
    ContinuousConfig,
    DynamicConfig,
    RequestLevelConfig,
    SchedulerConfig,
    StaticConfig,
)

EOS = 1
TICKS_PER_S = 8
WINDOWS_MS = (0, 125, 250, 500, 500, 1000, 3000)  # whole ticks


@dataclass(frozen=True)
class Abort:
    request_id: str
    mid_step: bool  # between schedule and update; in the request-level families the tick decides that


@dataclass
class World:
    num_blocks: int
    block_size: int
    config: SchedulerConfig
    arrivals: dict[int, list[Request]]  # by tick
    aborts: dict[int, list[Abort]]
    failures: dict[int, Failure]  # by step
    flushes: tuple[int, ...] = ()  # ticks, beside the one after the last arrival
    durations: tuple[int, ...] = (1,)  # ticks of the steps, over and over
    taken_in_flight: bool = False  # callers are heard while a step runs; else between two steps, as in the engine

    @property
    def last_event(self) -> int:
        return max([0, *self.arrivals, *self.aborts, *self.failures])

    @property
    def num_seqs(self) -> int:
        return sum(request.sampling.n for requests in self.arrivals.values() for request in requests)

    @property
    def max_num_tokens(self) -> int:
        """Prompt and output of one sequence, at most."""
        in_batch = getattr(self.config, "max_tokens_in_batch", None)
        return min(self.config.max_model_len, in_batch or self.config.max_model_len)

    @property
    def num_scratch(self) -> int:
        """Blocks at the end of the memory in which pads and dead rows are computed."""
        padded = isinstance(self.config, RequestLevelConfig) and self.config.padding
        return self.blocks_of(self.config.max_model_len) if padded else 0

    def blocks_of(self, num_tokens: int) -> int:
        return (num_tokens + self.block_size - 1) // self.block_size

    def num_held_for(self, num_tokens: int) -> int:
        """Blocks that a sequence holds whose blocks must cover so many tokens."""
        contiguous = self.config.kv_allocator == "contiguous" and num_tokens > 0
        return self.blocks_of(self.config.max_model_len if contiguous else num_tokens)


def continuous_world(rng: random.Random) -> World:
    num_blocks = rng.randint(4, 14)
    block_size = rng.randint(1, 4)
    capacity = num_blocks * block_size
    max_model_len = rng.choice([capacity, max(2, capacity * 2 // 3)])
    chunked = rng.random() < 0.8
    max_num_seqs = rng.randint(2, 6)
    config = ContinuousConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=rng.randint(max_num_seqs, max_num_seqs + 8) if chunked else max(max_model_len, 6),
        max_model_len=max_model_len,
        enable_chunked_prefill=chunked,
        scheduling_policy=rng.choice(["fcfs", "priority"]),
        priority_ageing_s=rng.choice([0.5, 4.0, 1000.0]),
        max_preemptions=rng.choice([0, 1, 1, 2, 2, 4, 4, 4]),
        max_num_waiting_seqs=rng.choice([None, None, None, 6]),
    )
    num_requests = rng.randint(3, 10)
    arrivals: dict[int, list[Request]] = {}
    aborts: dict[int, list[Abort]] = {}
    for index in range(num_requests):
        step = rng.choice([0, 0, rng.randint(0, 12)])
        arrivals.setdefault(step, []).append(random_request(rng, f"r{index}", max_model_len))
        if rng.random() < 0.25:
            aborts.setdefault(step + rng.randint(0, 8), []).append(Abort(f"r{index}", rng.random() < 0.7))
    failures = {
        rng.randint(0, 15): rng.choice([Failure(after_rows=rng.randint(0, 2)), Failure(row=rng.randint(0, 2))])
        for _ in range(rng.choice([0, 0, 1, 3]))
    }
    return World(num_blocks, block_size, config, arrivals, aborts, failures)


def contiguous_world(rng: random.Random) -> World:
    """The same, with room for a few of the longest sequences, each of which reserves all it may need."""
    world = continuous_world(rng)
    max_model_len = rng.randint(2, world.config.max_model_len)
    pieces = rng.randint(1, 4) * world.blocks_of(max_model_len)
    config = replace(world.config, max_model_len=max_model_len, kv_allocator="contiguous")
    return replace(world, config=config, num_blocks=pieces + rng.randint(0, 2))


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


def random_request(rng: random.Random, request_id: str, max_model_len: int) -> Request:
    # Mostly short prompts and long outputs: rows that fit when they enter and grow into each other's memory.
    num_prompt = rng.choice([rng.randint(1, 4)] * 3 + [rng.randint(1, max_model_len + 1)])
    room = max(1, max_model_len - num_prompt)
    max_tokens = rng.choice([None, rng.randint(1, 4), rng.randint(1, room), room, room + 1])
    sampling = SamplingParams(
        n=rng.choice([1, 1, 1, 2]),
        max_tokens=max_tokens,
        min_tokens=rng.randint(0, max_tokens or 3) if rng.random() < 0.3 else 0,
        ignore_eos=rng.random() < 0.8,
        stop=("0010",) if rng.random() < 0.2 else (),
        stop_token_ids=(0,) if rng.random() < 0.1 else (),
    )
    return Request(
        request_id=request_id,
        prompt_token_ids=tuple(rng.randint(0, 1) for _ in range(num_prompt)),
        sampling=sampling,
        eos_token_ids=(EOS,),
        priority=rng.randint(-1, 2),
    )
