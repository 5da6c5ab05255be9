"""Random worlds of continuous batching. They tick once a step."""

from __future__ import annotations

import random
from dataclasses import replace

from fakes import Cost, Failure, unbatched
from inflight.core.request import Request
from inflight.schedulers.config import ContinuousConfig
from laws.world import Abort, World, random_request

ADMISSIONS = (*["none"] * 8, *["watermark"] * 3, "future-peak", "future-peak", "reserve-all")


def continuous_world(rng: random.Random) -> World:
    """Whoever fits enters, nobody finds the KV of others, and who is preempted computes all again."""
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
        enable_prefix_caching=False,
        scheduling_policy=rng.choice(["fcfs", "priority"]),
        priority_ageing_s=rng.choice([0.5, 4.0, 1000.0]),
        admission="none",
        preemption_mode="recompute",
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
    config = replace(with_admission(rng, world.config), max_model_len=max_model_len, kv_allocator="contiguous")
    return replace(world, config=config, num_blocks=pieces + rng.randint(0, 2))


def with_admission(rng: random.Random, config: ContinuousConfig) -> ContinuousConfig:
    watermark_high = rng.choice([0.4, 0.75, 1.0, 1.0])
    return replace(
        config,
        admission=rng.choice(ADMISSIONS),
        watermark_high=watermark_high,
        watermark_low=watermark_high * rng.choice([0.0, 0.0, 0.5, 1.0]),
        kv_reserve_blocks=rng.choice([0, 0, 0, 0, 0, 1, 3]),
    )


def reuse_world(rng: random.Random) -> World:
    """Prompts begin alike and conversations go on; who is preempted may go to a host tier, if it has room."""
    world = continuous_world(rng)
    prefix_cache = rng.choice(["none", "hash", "radix"])
    config = with_admission(rng, world.config)
    if rng.random() < 0.3:  # a crowd of rows that are short beside the memory: some run on when others were preempted
        admission, watermark_low = rng.choice([(config.admission, config.watermark_low), ("watermark", 0.0)])
        num_tokens = config.max_num_batched_tokens + 9
        config = replace(config, max_num_seqs=9, max_num_batched_tokens=num_tokens)
        config = replace(config, admission=admission, watermark_low=watermark_low)
        world = replace(world, num_blocks=world.num_blocks * 2)
    config = replace(
        config,
        enable_prefix_caching=True,
        prefix_cache=prefix_cache,
        max_preemptions=rng.choice([1, 2, 4, 4]),
        preemption_mode=rng.choice(["recompute", "swap", "auto"]),
    )
    return replace(
        world,
        config=config,
        arrivals=_conversations(rng, world),
        num_host_blocks=rng.choice([0, rng.randint(1, 8), *[3 * world.num_blocks] * 2]),
        copy_failures={
            rng.randint(1, 3): Failure(after_copies=rng.randint(0, 3))
            if rng.random() < 0.5
            else Failure(after_rows=rng.randint(0, 2))
            for _ in range(rng.choice([0, 0, 1, 2]))
        },
        copy_aborts={rng.randint(1, 4): rng.randint(0, 2) for _ in range(rng.choice([0, 0, 1]))},
        costs=tuple(Cost(1.0, rng.choice([0.25, 4.0, 8.0])) for _ in range(rng.randint(1, 3))),
        num_digests=rng.choice([None, None, 5]) if prefix_cache == "hash" else None,
    )


def _conversations(rng: random.Random, world: World) -> dict[int, list[Request]]:
    """The same callers with other prompts: they begin like one of few texts, or go on where another one ended."""
    limit = world.config.max_model_len
    stems = [tuple(rng.randint(0, 1) for _ in range(limit)) for _ in range(rng.randint(1, 2))]
    salts = rng.choice([("",), ("",), ("", "tenant"), ("tenant", "other")])
    arrivals: dict[int, list[Request]] = {}
    before: list[tuple[int, Request]] = []
    for tick, requests in sorted(world.arrivals.items()):
        for request in requests:
            step, salt = tick, rng.choice(salts)
            if before and rng.random() < 0.35:
                first, other = rng.choice(before)
                answer = unbatched(other, 0, limit) if len(other.prompt_token_ids) < limit else []
                beginning, salt = (*other.prompt_token_ids, *answer), other.cache_salt
                step = max(tick, first + rng.choice([0, len(answer) + rng.randint(0, 4)]))
            else:
                beginning = rng.choice(stems)[: _length(rng, world)]
            tail = tuple(rng.randint(0, 1) for _ in range(rng.choice([0, 0, rng.randint(1, 4)])))
            prompt = ((*beginning, *tail) or (0,))[: max(1, limit - rng.choice([1, 2, 4]))]
            room = max(1, limit - len(prompt))
            max_tokens = rng.choice([None, rng.randint(1, 4), rng.randint(1, room), room, room])
            sampling = replace(request.sampling, n=rng.choice([1, 1, 2, 3]), max_tokens=max_tokens, min_tokens=0)
            changed = replace(request, prompt_token_ids=prompt, cache_salt=salt, sampling=sampling)
            arrivals.setdefault(step, []).append(changed)
            before.append((step, changed))
    return arrivals


def _length(rng: random.Random, world: World) -> int:
    """Of what a prompt has in common with others: often to a block's very end."""
    longest = world.config.max_model_len // 3 + 1
    num_tokens = rng.randint(1, longest)
    return num_tokens if rng.random() < 0.4 else max(1, num_tokens // world.block_size) * world.block_size
