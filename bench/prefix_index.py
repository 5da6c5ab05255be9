"""What finding and publishing a block costs in the two indices of prefixes: microseconds per block.

    python bench/prefix_index.py [--num-blocks 256] [--rounds 50]

One sequence of so many blocks publishes them one by one, as it grows; another with the same beginning finds them, for
the first time and again; then they are forgotten, from the end. The best of all rounds is told.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable

from inflight.bench.machine import versions
from inflight.cache.prefix import PrefixIndex
from inflight.cache.prefix_hash import HashPrefixIndex
from inflight.cache.prefix_radix import RadixPrefixIndex
from inflight.core.request import Request, SamplingParams
from inflight.core.sequence import Sequence

BLOCK_SIZE = 16
INDICES: dict[str, Callable[[], PrefixIndex]] = {
    "radix": lambda: RadixPrefixIndex(BLOCK_SIZE),
    "hash": lambda: HashPrefixIndex(BLOCK_SIZE, b"bench"),
}


def sequence(token_ids: list[int]) -> Sequence:
    request = Request(request_id="one", prompt_token_ids=tuple(token_ids), sampling=SamplingParams())
    return Sequence(request, 0, (0.0, 0), len(token_ids) + 1)


def round_s(index: PrefixIndex, token_ids: list[int], num_blocks: int) -> dict[str, float]:
    """Seconds of each operation on all blocks."""
    writer, reader = sequence(token_ids), sequence([*token_ids, 0])
    tables = [tuple(range(end)) for end in range(1, num_blocks + 1)]  # before the clock runs
    stamps_s = [time.perf_counter()]
    for end, table in enumerate(tables):
        index.publish(writer, table, end)
    stamps_s.append(time.perf_counter())
    for _ in range(2):
        if index.find(reader, num_blocks) != tables[-1]:
            raise RuntimeError("the index does not know what it was told")
        stamps_s.append(time.perf_counter())
    for block in reversed(range(num_blocks)):
        index.forget(block)
    stamps_s.append(time.perf_counter())
    names = ("publish", "find first", "find again", "forget")
    return {name: end - start for name, start, end in zip(names, stamps_s, stamps_s[1:], strict=False)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-blocks", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=50)
    args = parser.parse_args()
    draw = random.Random(0)
    token_ids = [draw.randrange(49152) for _ in range(args.num_blocks * BLOCK_SIZE)]
    print(f"{args.num_blocks} blocks of {BLOCK_SIZE} tokens; {versions()['cpu']}, Python {versions()['python']}")
    for name, make in INDICES.items():
        rounds = [round_s(make(), token_ids, args.num_blocks) for _ in range(args.rounds)]
        best = {what: min(one[what] for one in rounds) for what in rounds[0]}
        print(f"{name:6}", ", ".join(f"{what} {1e6 * took / args.num_blocks:.2f} us" for what, took in best.items()))


if __name__ == "__main__":
    main()
