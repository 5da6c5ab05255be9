"""The same bits whatever the batch: logits of the real model under random schedules, against each request alone.

    python tests/native/same_bits.py [--schedules 1000] [--kv-cache-dtype bfloat16] [--quantization int8]

A schedule draws its limits, pool, arrivals, aborts and number of threads; the scheduler that serves makes the steps.
Every row of logits is hashed, and must equal the hash that the same position had when its request ran alone.
`python tests/native/mutant.py` plants a defect in the kernels and shows that this finds it.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from inflight.core.output import MAIN_LANE, ScheduledSequence, SchedulerOutput, StepResult
from inflight.core.request import Request, SamplingParams, SeqId
from inflight.hub.resolve import resolve
from inflight.runtime.config import RuntimeConfig
from inflight.runtime.forward import StepLogits
from inflight.runtime.load import load_executor
from inflight.runtime.runner import ModelExecutor
from inflight.schedulers.config import ContinuousConfig
from inflight.schedulers.continuous import ContinuousScheduler

NUM_BLOCKS = 64  # of the executor; a schedule's own pool is smaller
BLOCK_SIZE = 16
NUM_PROMPTS = 24
Hashes = dict[tuple[SeqId, int], str]  # of the logits after so many tokens


class Hashing:
    """A forward pass that notes a hash of every row of logits it hands out."""

    def __init__(self, executor: ModelExecutor) -> None:
        assert executor._forward is not None
        self._forward = executor._forward
        self.capacity, self.num_threads = self._forward.capacity, self._forward.num_threads
        self.hashes: Hashes = {}

    def run(self, scheduled: Sequence[ScheduledSequence]) -> StepLogits:
        logits = self._forward.run(scheduled)
        values = np.asarray(logits.values)
        row = 0
        for sequence in scheduled:
            end = sequence.start + len(sequence.token_ids)
            for position in range(end - sequence.num_logits, end):
                found = hashlib.blake2b(values[row].tobytes(), digest_size=16).hexdigest()
                known = self.hashes.setdefault((sequence.seq_id, position), found)
                if known != found:
                    raise AssertionError(f"{sequence.seq_id} at {position}: other bits when computed again")
                row += 1
        return logits

    def operations_s(self) -> dict[str, float]:
        return self._forward.operations_s()


@dataclass
class Machine:
    """The model with one and with two threads: the same weights, loaded twice."""

    executors: list[ModelExecutor] = field(default_factory=list)
    hashing: list[Hashing] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path, **settings: str) -> Machine:
        machine = cls()
        for num_threads in (1, 2):
            config = RuntimeConfig(
                num_threads=num_threads, num_gpu_blocks_override=NUM_BLOCKS, block_size=BLOCK_SIZE, **settings
            )
            executor = load_executor(path, config)
            machine.hashing.append(Hashing(executor))
            executor._forward = machine.hashing[-1]
            machine.executors.append(executor)
        return machine


@dataclass(frozen=True)
class Outcome:
    hashes: Hashes
    num_preemptions: int
    num_split_prompts: int
    num_aborts: int


def prompts(seed: int, vocab_size: int) -> list[tuple[tuple[int, ...], int]]:
    """Prompts of random tokens, a few longer than a tile of keys, with the number of tokens to draw."""
    draw = random.Random(seed)
    return [
        (tuple(draw.randrange(2, vocab_size) for _ in range(draw.choice((1, 2, 15, 16, 17, 40, 70, 130, 150)))), n)
        for n in (draw.randrange(2, 40) for _ in range(NUM_PROMPTS))
    ]


def run(
    machine: Machine,
    requests: Sequence[tuple[str, tuple[int, ...], int, int, int | None]],
    limits: ContinuousConfig,
    num_blocks: int,
    num_threads: int,
) -> Outcome:
    """Run requests (id, prompt, max_tokens, the step it arrives at, the step it is aborted at) to their end."""
    executor, hashing = machine.executors[num_threads - 1], machine.hashing[num_threads - 1]
    hashing.hashes = {}
    scheduler = ContinuousScheduler(limits, num_blocks, BLOCK_SIZE)
    arrivals, aborts, split = list(requests), 0, set()
    for step in range(10_000):
        for name, prompt, max_tokens, arrives, _ in [r for r in arrivals if r[3] <= step]:
            sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
            request = Request(
                request_id=name, prompt_token_ids=prompt, sampling=sampling, eos_token_ids=(), arrival_s=float(arrives)
            )
            scheduler.add(request, float(arrives))
        arrivals = [r for r in arrivals if r[3] > step]
        for name, _, _, _, aborted in requests:
            if aborted == step:
                scheduler.abort(name, float(step))
                aborts += 1
        output = scheduler.schedule(MAIN_LANE, float(step))
        if not isinstance(output, SchedulerOutput):
            if not arrivals:
                break
            continue
        split |= {row.seq_id for row in output.scheduled if row.num_logits == 0}
        result = executor.execute(output)
        assert isinstance(result, StepResult)
        assert not result.failed
        scheduler.update(output, result, {}, float(step))
    stats = scheduler.stats()
    assert stats.live == 0
    last = scheduler.schedule(MAIN_LANE, 0.0)
    assert not isinstance(last, SchedulerOutput)
    return Outcome(hashing.hashes, stats.num_preemptions, len(split), aborts)


def alone(machine: Machine, vocab_size: int, seed: int = 0) -> list[Hashes]:
    """Each prompt by itself, in one chunk, on one thread."""
    limits = ContinuousConfig(max_num_seqs=1, max_num_batched_tokens=256, max_model_len=256)
    return [
        run(machine, [(str(i), prompt, max_tokens, 0, None)], limits, NUM_BLOCKS, 1).hashes
        for i, (prompt, max_tokens) in enumerate(prompts(seed, vocab_size))
    ]


def random_schedule(machine: Machine, references: Sequence[Hashes], vocab_size: int, seed: int) -> Outcome:
    """Run a random schedule and compare. Raises ``AssertionError`` at the first row with other bits."""
    draw = random.Random(seed)
    pool = prompts(0, vocab_size)
    chosen = draw.sample(range(NUM_PROMPTS), draw.randrange(2, 8))
    requests = [
        (str(i), *pool[i], draw.randrange(0, 12), draw.randrange(1, 30) if draw.random() < 0.15 else None)
        for i in chosen
    ]
    most = max(-(-(len(pool[i][0]) + pool[i][1]) // BLOCK_SIZE) for i in chosen)
    max_num_seqs = draw.randrange(1, 9)
    limits = ContinuousConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max(max_num_seqs, draw.choice((5, 16, 33, 64, 100, 250))),
        max_model_len=most * BLOCK_SIZE,
    )
    outcome = run(machine, requests, limits, min(NUM_BLOCKS, most + draw.randrange(0, 4)), draw.choice((1, 2)))
    for ((name, choice), position), found in outcome.hashes.items():
        expected = references[int(name)][(name, choice), position]
        if found != expected:
            raise AssertionError(f"schedule {seed}: request {name} at position {position} has other bits than alone")
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=1000)
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--quantization", default="auto")
    args = parser.parse_args()
    machine = Machine.load(resolve(None).path, kv_cache_dtype=args.kv_cache_dtype, quantization=args.quantization)
    vocab_size = machine.executors[0].model_config.vocab_size
    print(machine.executors[0].notes[0], flush=True)
    started_s = time.perf_counter()
    references = alone(machine, vocab_size)
    rows = preempted = split = aborted = 0
    for seed in range(args.schedules):
        outcome = random_schedule(machine, references, vocab_size, seed)
        rows += len(outcome.hashes)
        preempted += outcome.num_preemptions > 0
        split += outcome.num_split_prompts > 0
        aborted += outcome.num_aborts > 0
    print(
        f"{args.schedules} schedules in {time.perf_counter() - started_s:.0f} s: {rows} rows of logits, all with the "
        f"bits they have alone; {preempted} schedules preempted, {split} split a prompt, {aborted} aborted a request"
    )


if __name__ == "__main__":
    main()
