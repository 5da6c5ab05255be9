"""What is shared and what is swapped: how often it happens in random worlds, and what must not depend on it."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from inflight.core.output import SchedulerOutput
from laws.play import run_world
from laws.world import World
from laws.worlds import random_world

NUM_WORLDS = 1500  # "python -m laws.play reuse 5000" plays more of them

# In so many worlds at least, of a thousand.
OFTEN = {
    "steps that failed": 200,
    "requests aborted": 400,
    "hits": 400,
    "hits on blocks that others hold": 250,
    "hits of all but the last block": 200,
    "evictions": 300,
    "merges": 300,
    "overtaken siblings": 80,
    "collisions": 50,
    "swapped out": 40,
    "swapped out by auto": 25,
    "swapped in": 60,
    "recomputed": 100,
    "recomputed by auto": 4,
    "swapped out in a failed step": 10,
    "failed steps that copied": 20,
    "aborted while swapped out": 8,
    "aborted while coming in": 4,
}


def test_fifteen_hundred_worlds_and_what_happens_in_them(tell):
    reports = [run_world(random_world(random.Random(seed), "reuse")) for seed in range(NUM_WORLDS)]
    worlds = Counter(what for report in reports for what, count in report.memory.items() if count)
    tell(f"of {NUM_WORLDS} reuse worlds: " + ", ".join(f"{worlds[what]} {what}" for what in OFTEN))
    rare = {what: worlds[what] for what, count in OFTEN.items() if worlds[what] < count * NUM_WORLDS / 1000}
    assert not rare


def test_hashes_and_a_radix_tree_find_the_same():
    num_hits = 0
    for seed in range(200):
        world = replace(random_world(random.Random(seed), "reuse"), num_digests=None)
        by_hash, by_tree = (
            run_world(replace(world, config=replace(world.config, prefix_cache=name))) for name in ("hash", "radix")
        )
        assert by_hash.outputs == by_tree.outputs, seed
        num_hits += by_hash.memory["hits"]
    assert num_hits > 400


def test_what_a_tenant_gets_does_not_depend_on_what_another_one_sends():
    """Whether one has sent the other's prompts or something else of the same length, all steps are the same."""
    num_leaks = 0
    for seed in range(100):
        same, other, unsalted = (run_world(tenants(seed, *how)) for how in ((True, "a"), (False, "a"), (True, "b")))
        assert anonymous(same.outputs) == anonymous(other.outputs), seed
        num_leaks += anonymous(unsalted.outputs) != anonymous(same.outputs)
    assert num_leaks > 30  # what would have been seen without the salts


def tenants(seed: int, same: bool, salt: str) -> World:
    """Two tenants begin alike, or with other tokens; how long each output is depends on no token."""
    rng = random.Random(seed)
    world = random_world(rng, "reuse")
    config = replace(world.config, prefix_cache=rng.choice(["hash", "radix"]))
    arrivals = {}
    for tick, requests in world.arrivals.items():
        arrivals[tick] = []
        for request in requests:
            is_first = rng.random() < 0.5
            shift = 0 if same or not is_first else 500
            # A token says where it stands and that it was in a prompt: outputs, which are hashes, hardly meet it.
            prompt = tuple(2 * at + bit + shift for at, bit in enumerate(request.prompt_token_ids))
            sampling = replace(request.sampling, ignore_eos=True, stop=(), stop_token_ids=())
            salted = replace(request, cache_salt=salt if is_first else "b", prompt_token_ids=prompt, sampling=sampling)
            arrivals[tick].append(replace(salted, request_id=f"{request.request_id} of {'a' if is_first else 'b'}"))
    return replace(world, config=config, arrivals=arrivals, aborts={}, num_digests=None, vocab_size=10_000)


def anonymous(outputs: list[SchedulerOutput]) -> list[SchedulerOutput]:
    """The same without the tokens of the first tenant."""

    def is_first(row) -> bool:
        return row.seq_id[0].endswith("of a")

    return [
        replace(
            output,
            scheduled=tuple(
                row._replace(token_ids=(0,) * len(row.token_ids)) if is_first(row) else row for row in output.scheduled
            ),
            new=tuple(
                row._replace(prompt_token_ids=(0,) * len(row.prompt_token_ids)) if is_first(row) else row
                for row in output.new
            ),
        )
        for output in outputs
    ]
