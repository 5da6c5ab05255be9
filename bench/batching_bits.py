"""The same bits whatever the batching: random workloads on the built-in model, in every family, against each alone.

    python bench/batching_bits.py [--workloads 10] [--seed 0] [--model PATH]

Requests are spread over virtual time, in which a step takes as long as a fixed cost says; the forward
passes are real. For each workload and family it prints the SHA-256 of all tokens and logprobs, and what the ledger
counted: the share of pads and of dead rows in what was computed, and of empty seats. Ends with 1 if a hash differs
from that of the requests alone, or if continuous batching computed a pad or a dead row.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
import time
from collections import defaultdict
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from inflight.core.request import Request, SamplingParams
from inflight.hub.resolve import resolve
from inflight.runtime.config import RuntimeConfig
from inflight.runtime.load import load_executor
from native.in_families import Outputs, alone, configs, logprobs_are_finite, run

MAX_MODEL_LEN, NUM_SEATS, NUM_REQUESTS = 160, 6, 12


def workload(seed: int, vocab_size: int) -> list[Request]:
    """Requests of random tokens whose lengths and arrivals are drawn: half greedy, half drawn with seeds."""
    draw = random.Random(seed)
    rate_per_s = draw.choice((8.0, 20.0, 40.0))
    requests, now_s = [], 0.0
    for index in range(NUM_REQUESTS):
        now_s += draw.expovariate(rate_per_s)
        num_prompt = min(96, max(1, round(draw.lognormvariate(3.0, 0.9))))
        max_tokens = min(48, max(1, round(draw.lognormvariate(2.5, 0.8))))
        sampling = SamplingParams(
            temperature=draw.choice((0.0, 0.9)), seed=seed * 1000 + index, logprobs=3, max_tokens=max_tokens
        )
        prompt = tuple(draw.randrange(2, vocab_size) for _ in range(num_prompt))
        requests.append(
            Request(
                request_id=str(index),
                prompt_token_ids=prompt,
                sampling=sampling,
                eos_token_ids=(2,),
                arrival_s=now_s,
            )
        )
    return requests


def sha(outputs: Outputs) -> str:
    """Of every token and logprob, as floats' exact values."""
    digest = hashlib.sha256()
    for seq_id in sorted(outputs):
        digest.update(repr((seq_id, outputs[seq_id])).encode())
    return digest.hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="of the first workload; the others follow")
    parser.add_argument("--model", default=None, help="a folder or a .gguf file; none: the built-in model")
    args = parser.parse_args()
    started_s = time.perf_counter()
    runtime = RuntimeConfig(num_gpu_blocks_override=128, block_size=16)
    executor = load_executor(resolve(args.model).path, runtime)
    print(executor.notes[0])
    wrong = []
    shares: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for seed in range(args.seed, args.seed + args.workloads):
        requests = workload(seed, executor.model_config.vocab_size)
        reference = alone(executor, MAX_MODEL_LEN, requests)
        expected = sha(reference)
        num_tokens = sum(map(len, reference.values()))
        print(
            f"seed {seed}: {NUM_REQUESTS} requests in {requests[-1].arrival_s:.1f} s, {num_tokens} tokens", flush=True
        )
        print(f"  {'alone':26} {expected}")
        if not logprobs_are_finite(reference):
            wrong.append(f"seed {seed}: a logprob is missing or not finite")
        for name, config in configs(NUM_SEATS, MAX_MODEL_LEN).items():
            outcome = run(executor, config, requests)
            found, slots = sha(outcome.outputs), outcome.slots
            computed, seats = slots.shares()
            share = float(computed["padding"]), float(computed["straggler"]), float(seats["empty"])
            shares[name].append(share)
            pads, dead, empty = (f"{value:6.1%}" for value in share)
            print(f"  {name:26} {found}  pads {pads}  dead rows {dead}  empty seats {empty}", flush=True)
            if found != expected:
                wrong.append(f"seed {seed}, {name}: other tokens or logprobs than alone")
            if name.startswith("continuous") and (slots.padding or slots.straggler):
                wrong.append(f"seed {seed}, {name}: {slots.padding} pads and {slots.straggler} slots of dead rows")
    print(f"mean of {args.workloads} workloads: pads + dead rows of what was computed, and empty seats")
    for name, found_shares in shares.items():
        bubbles = mean(pads + dead for pads, dead, _ in found_shares)
        print(f"  {name:26} {bubbles:6.1%}  {mean(empty for *_, empty in found_shares):6.1%}")
    print(f"{time.perf_counter() - started_s:.0f} s")
    print("\n".join(wrong) or "every family gives every request the bits that it has alone")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
