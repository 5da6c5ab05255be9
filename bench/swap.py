"""What it costs to swap: seconds per KV block, to the host tier and back, through memory and through a file.

python bench/swap.py [--model MODEL] [--kv-cache-dtype bfloat16] [--swap-file /var/tmp/swap] [--num-rounds 20]

Blocks are scattered in both tiers. "first" is the first use of a host block, whose pages the system hands out then;
the others are medians.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from pathlib import Path

import torch

from inflight.bench.machine import versions
from inflight.core.output import BlockCopy
from inflight.hub.resolve import resolve
from inflight.runtime.kv import paged
from inflight.runtime.kv.host_tier import HostBlocks
from inflight.runtime.load import default_num_threads, open_checkpoint

BLOCK_SIZE = 16
NUM_BLOCKS = 1024
COUNTS = (1, 8, 64)  # blocks in one step


def seconds(host: HostBlocks, copies: list[BlockCopy]) -> float:
    started_s = time.perf_counter()
    host.copy(copies)
    return time.perf_counter() - started_s


def row(host: HostBlocks, count: int, num_rounds: int) -> tuple[float, float, float]:
    """Seconds per block: first to the host, again to the host, from the host."""
    draw = random.Random(count)
    blocks, host_blocks = (draw.sample(range(NUM_BLOCKS), count) for _ in range(2))
    out = [BlockCopy(True, *pair) for pair in zip(blocks, host_blocks, strict=True)]
    back = [BlockCopy(False, *pair) for pair in zip(blocks, host_blocks, strict=True)]
    first_s = seconds(host, out)
    times_s = [(seconds(host, out), seconds(host, back)) for _ in range(num_rounds)]
    to_s, from_s = (statistics.median(direction) for direction in zip(*times_s, strict=True))
    return first_s / count, to_s / count, from_s / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--kv-cache-dtype", default="bfloat16")
    parser.add_argument("--swap-file", type=Path, default=Path("/var/tmp/inflight-swap"))
    parser.add_argument("--num-rounds", type=int, default=20)
    args = parser.parse_args()
    torch.set_num_threads(default_num_threads())
    model = open_checkpoint(resolve(args.model).path).config
    _, store = paged.allocate(model, NUM_BLOCKS, BLOCK_SIZE, args.kv_cache_dtype)
    for block in range(NUM_BLOCKS):  # so that its pages are there
        for part in store.block_parts(block):
            part.fill_(block % 256)
    print(f"{versions()['cpu']}, {torch.get_num_threads()} threads; blocks of {store.bytes_per_block:,} bytes")
    print(f"{'through':<8}{'blocks':>7}{'first us':>10}{'to host us':>12}{'from host us':>14}{'GB/s':>7}  per block")
    for name, file in (("memory", None), ("file", args.swap_file)):
        for count in COUNTS:
            host = HostBlocks(store, NUM_BLOCKS, torch.device("cpu"), file)  # anew: none of its pages are there
            first_s, to_s, from_s = row(host, count, args.num_rounds)
            rate = 2 * store.bytes_per_block / (to_s + from_s)
            print(
                f"{name:<8}{count:>7}{first_s * 1e6:>10.1f}{to_s * 1e6:>12.1f}{from_s * 1e6:>14.1f}{rate / 1e9:>7.1f}"
            )


if __name__ == "__main__":
    main()
