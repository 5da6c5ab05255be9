"""How preemptions fall as KV gets more of the memory: gpu_memory_utilization from 0.5 to 0.95 of a small budget.

    python bench/memory_share.py [--budget 470000000] [--shares 0.5,0.6,0.7,0.8,0.95] [--num-requests 224]

The model is loaded anew with each share, as a server would be; the planner decides how many blocks that gives. All
requests are there from the start. What to do about it is printed from what was measured.
"""

from __future__ import annotations

import argparse

from on_model import OnModel, save
from pressure import CONFIG, requests, told

from inflight.runtime.config import RuntimeConfig

ADVICE = (
    "preemptions: {first} with {first_share:g} of the budget ({first_blocks} blocks), {last} with {last_share:g} "
    "({last_blocks} blocks). From {calm_share:g} on there are at most {few}, and {calm_speed:.0f} instead of "
    "{first_speed:.0f} output tokens/s: raise gpu_memory_utilization that far where memory is short."
)


def advice(runs: dict[float, dict]) -> str:
    """What the sweep says to an operator."""
    shares = sorted(runs)
    few = max(1, runs[shares[0]]["num_preemptions"] // 20)
    calm = next((share for share in shares if runs[share]["num_preemptions"] <= few), shares[-1])
    first, last = runs[shares[0]], runs[shares[-1]]
    return ADVICE.format(
        first=first["num_preemptions"],
        last=last["num_preemptions"],
        first_share=shares[0],
        last_share=shares[-1],
        first_blocks=first["num_blocks"],
        last_blocks=last["num_blocks"],
        first_speed=first["output_tokens_per_s"],
        calm_speed=runs[calm]["output_tokens_per_s"],
        calm_share=calm,
        few=max(few, runs[calm]["num_preemptions"]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=int, default=470_000_000, help="bytes")
    parser.add_argument("--shares", default="0.5,0.6,0.7,0.8,0.95")
    parser.add_argument("--num-requests", type=int, default=224)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    runs: dict[float, dict] = {}
    for share in map(float, args.shares.split(",")):
        runtime = RuntimeConfig(memory_budget=args.budget, gpu_memory_utilization=share, swap_space_bytes=0)
        model = OnModel(runtime, CONFIG)
        num_blocks = model.executor.capacity.num_blocks
        items = requests(args.num_requests, model.vocab_size, args.seed)
        run = model.run(CONFIG, items)
        runs[share] = {**told(run), "num_blocks": num_blocks, "notes": model.executor.notes}
        print(f"{share:4g}: {num_blocks} blocks, {run.stats.num_preemptions} preemptions", end=", ")
        print(f"{run.output_tokens_per_s:.1f} tokens/s", flush=True)
        model.executor.close()
    text = advice(runs)
    print(text)
    save(
        "memory_share",
        {"budget_bytes": args.budget, "runs": {str(share): one for share, one in runs.items()}, "advice": text},
    )


if __name__ == "__main__":
    main()
