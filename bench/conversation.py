"""Conversations with and without a prefix cache: the first requests of Mooncake's trace, their shared prefixes kept.

    python bench/conversation.py TRACE [--num-requests 500] [--length-scale 0.0625] [--sizes 1024,2912,8192,24576]

The trace is replayed in real time on the built-in model. Beside the hit rate stands that of a cache that never forgets,
for the same requests in the order of their arrival; and what caches of other sizes find, by simulation.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from on_model import OnModel, Run, percentiles, save
from tuning_sweep import NoText

from inflight.engine.clock import VirtualClock
from inflight.engine.core import EngineCore
from inflight.engine.executor import KVCapacity
from inflight.runtime.config import RuntimeConfig
from inflight.schedulers.config import ContinuousConfig
from inflight.schedulers.registry import make_scheduler
from inflight.sim.cost import LinearStepCost
from inflight.sim.executor import SimExecutor
from inflight.sim.loop import simulate
from inflight.workload.build import build_workload
from inflight.workload.config import WorkloadConfig
from inflight.workload.item import WorkItem

BLOCK_SIZE = 16
SMALL_BLOCKS, LARGE_BLOCKS = 2912, 24576  # 1 GiB, as by default, and 8.4 GiB: of bfloat16 on the built-in model
CONFIG = ContinuousConfig(max_num_batched_tokens=256, max_num_waiting_seqs=None, max_num_seqs=32)
STEP_S, TOKEN_S = 0.004, 0.0003  # about what a step and a token of it cost on two cores; of the simulation alone


def bound(items: Sequence[WorkItem]) -> float:
    """The share of all prompt tokens that a cache which never forgets, and has each prompt at once, would find."""
    known: set[tuple[int, ...]] = set()
    num_found = num_tokens = 0
    for item in items:
        prompt = item.prompt_token_ids
        num_blocks = 0
        while (end := (num_blocks + 1) * BLOCK_SIZE) < len(prompt) and prompt[:end] in known:
            num_blocks += 1
        known |= {prompt[:end] for end in range(BLOCK_SIZE, len(prompt) + 1, BLOCK_SIZE)}
        num_found += num_blocks * BLOCK_SIZE
        num_tokens += len(prompt)
    return num_found / num_tokens


def simulated_hit_rate(config: ContinuousConfig, items: Sequence[WorkItem], num_blocks: int) -> float:
    """The scheduler that serves, over so many blocks, in virtual time."""
    scheduler, clock = make_scheduler(config, num_blocks, BLOCK_SIZE), VirtualClock()
    executor = SimExecutor(KVCapacity(num_blocks, BLOCK_SIZE, 0), LinearStepCost(STEP_S, TOKEN_S, 0.0).duration_s)
    core = EngineCore(scheduler, dict.fromkeys(scheduler.lanes, executor), lambda _: NoText(), clock)
    simulate(core, scheduler.lanes, clock, [item.request(item.arrival_s) for item in items])
    stats = scheduler.stats()
    if stats.rejected:
        print(f"  {num_blocks} blocks are too few for {stats.rejected} requests")
    return stats.num_prefix_hit_tokens / stats.num_prefix_query_tokens


def told(run: Run) -> dict[str, object]:
    stats = run.stats
    return {
        "hit_rate": stats.num_prefix_hit_tokens / max(1, stats.num_prefix_query_tokens),
        "ttft_s": percentiles(outcome.ttft_s for outcome in run.outcomes),
        "e2e_s": percentiles(outcome.end_s - outcome.sent_s for outcome in run.outcomes),
        "duration_s": run.duration_s,
        "requests_per_s": len(run.outcomes) / run.duration_s,
        "prompt_tokens_per_s": sum(outcome.num_prompt_tokens for outcome in run.outcomes) / run.duration_s,
        "num_evicted_blocks": stats.num_evicted_blocks,
        "num_preemptions": stats.num_preemptions,
        "output_sha256": run.output_sha256,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--num-requests", type=int, default=500)
    parser.add_argument("--length-scale", type=float, default=1 / 16)
    parser.add_argument("--request-rate", type=float, default=None, help="requests/s; none: as in the trace")
    parser.add_argument("--sizes", default="1024,2912,8192,24576", help="caches to simulate, in blocks")
    parser.add_argument("--simulate-only", action="store_true")
    args = parser.parse_args()
    model = OnModel(RuntimeConfig(num_gpu_blocks_override=LARGE_BLOCKS, swap_space_bytes=0), CONFIG)
    max_model_len = model.executor.model_config.max_position_embeddings
    config = replace(CONFIG, max_model_len=max_model_len)
    workload = build_workload(
        WorkloadConfig(
            trace=args.trace,
            trace_format="mooncake",
            num_requests=args.num_requests,
            length_scale=args.length_scale,
            request_rate=args.request_rate,
        ),
        model.vocab_size,
        max_model_len,
    )
    print("\n".join(workload.notes))
    best = bound(workload.items)
    print(f"a cache that never forgets would find {best:.2%} of the prompt tokens")
    by_size = {}
    for num_blocks in map(int, args.sizes.split(",")):
        for name in ("hash", "radix"):
            rate = simulated_hit_rate(replace(config, prefix_cache=name), workload.items, num_blocks)
            by_size[f"{name} {num_blocks}"] = rate
            print(f"  simulated: {name:5} {num_blocks:6} blocks: {rate:.2%}", flush=True)
    if args.simulate_only:
        return
    runs = {}
    for name, num_blocks in (("none", SMALL_BLOCKS), ("hash", SMALL_BLOCKS), ("hash", LARGE_BLOCKS)):
        run = model.run(replace(config, prefix_cache=name), workload.items, num_blocks)
        runs[f"{name} {num_blocks}"] = told(run)
        print(f"{name:5} {num_blocks} blocks: {told(run)}", flush=True)
    figures = {"notes": workload.notes, "bound": best, "simulated": by_size, "runs": runs}
    save("conversation", {**figures, "max_num_batched_tokens": 256, "max_num_seqs": 32})


if __name__ == "__main__":
    main()
