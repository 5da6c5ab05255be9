"""How long `schedule` + `update` take for many decoding rows: the engine's own cost of one step.

python bench/scheduling.py [--rows 256] [--context 512] [--steps 200]
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time

from inflight.core.output import Idle, SampledRow, SampledToken, StepResult
from inflight.core.request import Request, SamplingParams
from inflight.schedulers.config import ContinuousConfig
from inflight.schedulers.continuous import ContinuousScheduler


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--context", type=int, default=512, help="prompt tokens of each row")
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    max_model_len = args.context + args.steps + 16
    blocks_each = -(-max_model_len // 16)
    config = ContinuousConfig(
        max_num_seqs=args.rows, max_num_batched_tokens=args.rows * args.context, max_model_len=max_model_len
    )
    scheduler = ContinuousScheduler(config, num_blocks=args.rows * blocks_each, block_size=16)
    for row in range(args.rows):
        sampling = SamplingParams(max_tokens=args.steps + 8, ignore_eos=True)
        prompt = (row + 2,) + (1,) * (args.context - 1)  # nobody shares another's
        scheduler.add(Request(request_id=str(row), prompt_token_ids=prompt, sampling=sampling), 0.0)
    times_ms = []
    for step in range(args.steps):
        before = time.perf_counter()
        output = scheduler.schedule("main", float(step))
        scheduled = time.perf_counter()
        assert not isinstance(output, Idle)
        result = StepResult(step, tuple(SampledRow(row.seq_id, (SampledToken(7),)) for row in output.scheduled), 0.0)
        start = time.perf_counter()
        scheduler.update(output, result, {}, float(step))
        scheduler.transitions()
        if all(len(row.token_ids) == 1 for row in output.scheduled) and len(output.scheduled) == args.rows:
            times_ms.append(1e3 * (scheduled - before + time.perf_counter() - start))
    cuts = statistics.quantiles(times_ms, n=20)
    print(
        f"schedule + update, {args.rows} decoding rows, {args.context}+ tokens of context each, {len(times_ms)} steps, "
        f"Python {platform.python_version()}: median {statistics.median(times_ms):.3f} ms, p95 {cuts[-1]:.3f} ms"
    )


if __name__ == "__main__":
    main()
