"""A world: a scheduler's limits, its memory, and callers who come, give up and meet failing steps."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from fakes import Cost, Failure
from inflight.core.request import Request, SamplingParams
from inflight.schedulers.config import RequestLevelConfig, SchedulerConfig

EOS = 1
TICKS_PER_S = 8


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
    num_host_blocks: int = 0
    copy_failures: dict[int, Failure] = field(default_factory=dict)  # by number among the steps that copy blocks
    copy_aborts: dict[int, int] = field(default_factory=dict)  # the same; in flight, of who is copied at that index
    costs: tuple[Cost, ...] = (Cost(),)  # of the steps, over and over
    num_digests: int | None = None  # digests of prefixes are so few that they collide
    vocab_size: int = 2

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
