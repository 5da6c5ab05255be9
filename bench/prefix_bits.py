"""The same bits with the prefix cache as without it: random prompts that share prefixes, for every KV format.

    python bench/prefix_bits.py [--num-prompts 1000] [--formats float32,bfloat16,int8,int4]

Prompts are random walks down a tree of random tokens. Each runs once with a prefix cache, in a pool so small that
prefixes are evicted all the time, and once without; the SHA-256 of every logit of every step of every request must be
the same. Ends with 1 if one is not, if fewer than half of the prompts hit, or if fewer than one block per prompt was
evicted.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
from collections.abc import Sequence
from dataclasses import replace

from on_model import OnModel, save

from inflight.core.output import ScheduledSequence, SchedulerOutput
from inflight.core.request import SeqId
from inflight.runtime.config import RuntimeConfig
from inflight.runtime.forward import ForwardPass, StepLogits
from inflight.schedulers.config import ContinuousConfig
from inflight.workload.item import WorkItem

NUM_BLOCKS, NUM_SEATS, MAX_MODEL_LEN = 192, 12, 256
CONFIG = ContinuousConfig(max_num_seqs=NUM_SEATS, max_num_batched_tokens=128, max_model_len=MAX_MODEL_LEN)


class Watched:
    """A forward pass that remembers the digest of each sequence's logits."""

    def __init__(self, forward: ForwardPass) -> None:
        self._forward = forward
        self.digests: dict[SeqId, list[bytes]] = {}

    def __getattr__(self, name: str):
        return getattr(self._forward, name)

    def run(self, scheduled: Sequence[ScheduledSequence]) -> StepLogits:
        logits = self._forward.run(scheduled)
        values, at = logits.values.numpy(), 0
        for row in scheduled:
            for own in values[at : at + row.num_logits]:
                self.digests.setdefault(row.seq_id, []).append(hashlib.sha256(own.tobytes()).digest())
            at += row.num_logits
        return logits


def prompts(num_prompts: int, vocab_size: int, seed: int) -> list[WorkItem]:
    """Walks down a tree: each node is a run of tokens, with a few nodes below; then some tokens of the prompt's own."""
    draw = random.Random(seed)
    runs: dict[tuple[int, ...], tuple[int, ...]] = {}
    items = []
    for index in range(num_prompts):
        path: tuple[int, ...] = (draw.randrange(24),)
        while draw.random() < 0.6 and len(path) < 4:
            path = (*path, draw.randrange(4))
        tokens: list[int] = []
        for depth in range(1, len(path) + 1):
            node = path[:depth]
            if node not in runs:
                runs[node] = tuple(draw.randrange(vocab_size) for _ in range(draw.randint(5, 40)))
            tokens += runs[node]
        tokens += [draw.randrange(vocab_size) for _ in range(draw.choice((0, 1, draw.randint(2, 30))))]
        items.append(WorkItem(str(index), tuple(tokens), draw.randint(1, 8)))
    return items


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-prompts", type=int, default=1000)
    parser.add_argument("--formats", default="float32,bfloat16,int8,int4")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    wrong, figures = [], {}
    for kv_format in args.formats.split(","):
        model = OnModel(RuntimeConfig(num_gpu_blocks_override=NUM_BLOCKS, kv_cache_dtype=kv_format), CONFIG)
        items = prompts(args.num_prompts, model.vocab_size, args.seed)
        digests, stats, num_hit = {}, {}, {}
        for name in ("hash", "radix", "none"):
            hits: set[SeqId] = set()

            def count(output: SchedulerOutput, *_: object, hits: set[SeqId] = hits) -> None:
                first = {new.seq_id for new in output.new}
                hits |= {row.seq_id for row in output.scheduled if row.start > 0 and row.seq_id in first}

            forward = model.executor._forward
            assert forward is not None
            watched = Watched(forward)
            model.executor._forward = watched  # type: ignore[assignment]
            config = replace(CONFIG, prefix_cache=name)
            run = model.run(config, items, max_concurrency=NUM_SEATS * 2, on_step=count)
            model.executor._forward = forward
            digests[name], stats[name], num_hit[name] = watched.digests, run.stats, len(hits)
            print(
                f"{kv_format:9} {name:6} {len(hits):5} prompts hit, {run.stats.num_prefix_hit_tokens:7,} of "
                f"{run.stats.num_prefix_query_tokens:,} tokens, {run.stats.num_evicted_blocks:6,} blocks evicted, "
                f"{run.stats.num_preemptions} preemptions; {run.duration_s:.0f} s",
                flush=True,
            )
            if name != "none" and (len(hits) < len(items) / 2 or run.stats.num_evicted_blocks < len(items)):
                wrong.append(f"{kv_format}, {name}: too few hits or evictions to tell")
        total = hashlib.sha256(repr(sorted(digests["none"].items())).encode()).hexdigest()
        differing = {
            name: sum(digests[name].get(seq_id) != own for seq_id, own in digests["none"].items())
            for name in ("hash", "radix")
        }
        num_logits = sum(map(len, digests["none"].values()))
        print(f"{kv_format:9} {num_logits:,} rows of logits, sha256 {total}; requests that differ: {differing}")
        if any(differing.values()):
            wrong.append(f"{kv_format}: other logits with the cache than without")
        figures[kv_format] = {
            "num_prompts": len(items),
            "num_prompts_hit": num_hit["hash"],
            "hit_tokens": stats["hash"].num_prefix_hit_tokens,
            "query_tokens": stats["hash"].num_prefix_query_tokens,
            "num_evicted_blocks": stats["hash"].num_evicted_blocks,
            "num_rows_of_logits": num_logits,
            "num_differing": sum(differing.values()),
            "sha256": total,
        }
        model.executor.close()
    save("prefix_bits", {"formats": figures, "seed": args.seed, "num_blocks": NUM_BLOCKS})
    print("\n".join(wrong) or "the cache changes no bit of any logit")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
