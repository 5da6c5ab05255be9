"""Play worlds to their ends, every law checked on the way: ``python -m laws.play FAMILY NUM_WORLDS``.

Exits with 1 at the first broken law; the mutants are caught that way. ``python -m laws.play reuse 5000`` plays more
worlds than the tests do, and prints what happened in them.
"""

from __future__ import annotations

import random
import sys
from collections import Counter

from inflight.schedulers.config import ContinuousConfig
from laws.continuous_laws import ContinuousReport, play_continuous
from laws.request_level_laws import RequestLevelReport, play_request_level
from laws.worlds import World, random_world


def run_world(world: World) -> ContinuousReport | RequestLevelReport:
    if isinstance(world.config, ContinuousConfig):
        return play_continuous(world)
    return play_request_level(world)


def main(family: str, num_worlds: int) -> None:
    happened: Counter[str] = Counter()
    for seed in range(num_worlds):
        world = random_world(random.Random(seed), family)
        try:
            report = run_world(world)
        except Exception as error:
            print(f"caught in world {seed}: {type(error).__name__}: {error}")
            sys.exit(1)
        happened["steps"] += len(report.outputs)
        if isinstance(report, ContinuousReport):
            happened += report.memory
            happened[f"worlds with {world.config.prefix_cache}, {world.config.preemption_mode}"] += 1
    print(f"{num_worlds} worlds, no broken law")
    for what, count in sorted(happened.items()):
        print(f"{count:9} {what}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
