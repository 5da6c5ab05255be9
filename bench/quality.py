"""What a setting costs in quality: perplexity and greedy tokens, next to the same weights in float32.

python bench/quality.py --setting dtype=bfloat16 --setting quantization=int8,kv_cache_dtype=int8

A setting is a list of `RuntimeConfig` fields. Every chunk of text is one step of the forward pass that the engine
runs, and every generation is decoded by it. Chunks are compared in pairs; the interval is a bootstrap over chunks
(Efron, 1979). The default text is the running Python's own: its documentation topics and the code of some modules.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from quality_texts import Chunk, make_chunks, texts

import inflight
from inflight import config
from inflight.core.output import ScheduledSequence
from inflight.core.request import TokenId
from inflight.hub.resolve import ModelFiles, resolve
from inflight.runtime.config import RuntimeConfig
from inflight.runtime.forward import StepLogits
from inflight.runtime.load import load_executor
from inflight.runtime.runner import ModelExecutor
from inflight.text.tokenizer import Tokenizer

PROMPT_TOKENS = 64
RESAMPLES = 10_000
REFERENCE = "dtype=float32,quantization=none"
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Reading:
    """What one setting made of the chunks and the prompts."""

    nll: Floats  # [num_chunks]: mean over a chunk's tokens from the second on, nats
    greedy: NDArray[np.int64]  # [num_chunks, chunk_tokens]: the likeliest token after each
    generated: NDArray[np.int64]  # [num_prompts, max_tokens]
    notes: tuple[str, ...]
    duration_s: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """A setting next to the reference; shares are in [0, 1]."""

    setting: str
    perplexity: float
    relative_difference: float  # of perplexity
    interval: tuple[float, float]  # 95 %, of the relative difference
    by_source: dict[str, float]  # relative difference within each text
    same_greedy_token: float  # of all positions, both having read the same text
    same_generation: float  # of the prompts: every token equal
    median_equal_tokens: float  # of a generation, before the first that differs
    duration_s: float
    notes: tuple[str, ...]


class Reader:
    """The forward pass that an executor runs, and the steps that this bench asks of it."""

    def __init__(self, executor: ModelExecutor) -> None:
        assert executor._forward is not None  # it has just been loaded
        self._forward = executor._forward

    def token_logits(self, token_ids: tuple[TokenId, ...]) -> StepLogits:
        """Logits after each of the tokens, which are one step of one sequence."""
        return self._run([(token_ids, 0, 0, len(token_ids))])

    def generate(self, prompts: Sequence[tuple[TokenId, ...]], max_tokens: int) -> NDArray[np.int64]:
        """Continue all prompts, which are equally long, at once: ``[len(prompts), max_tokens]``."""
        num_blocks = self._num_blocks(len(prompts[0]) + max_tokens)
        columns: list[Sequence[TokenId]] = []
        start, step_tokens = 0, list(prompts)
        for _ in range(max_tokens):
            columns.append(self._run([(ids, start, i * num_blocks, 1) for i, ids in enumerate(step_tokens)]).best)
            start += len(step_tokens[0])
            step_tokens = [(token_id,) for token_id in columns[-1]]
        return np.array(columns).T

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._forward.capacity.block_size)

    def _run(self, rows: Sequence[tuple[tuple[TokenId, ...], int, int, int]]) -> StepLogits:
        """Run one step of sequences given as (tokens, start, first block, num_logits)."""
        scheduled = []
        for index, (token_ids, start, first_block, num_logits) in enumerate(rows):
            blocks = range(first_block, first_block + self._num_blocks(start + len(token_ids)))
            if blocks[-1] >= self._forward.capacity.num_blocks:
                raise SystemExit(
                    f"{self._forward.capacity.num_blocks} KV blocks are too few for these prompts or chunks"
                )
            scheduled.append(ScheduledSequence((str(index), 0), token_ids, start, tuple(blocks), num_logits))
        logits = self._forward.run(scheduled)
        if min(logits.best) < 0:
            raise SystemExit("the model's logits are not finite")
        return logits


def read(files: ModelFiles, runtime: RuntimeConfig, chunks: list[Chunk], num_prompts: int, max_tokens: int) -> Reading:
    """Load the model with one setting and let it read and continue the text."""
    started_s = time.perf_counter()
    executor = load_executor(files.path, runtime)
    reader = Reader(executor)
    nll, greedy = [], []
    for chunk in chunks:
        logits = reader.token_logits(chunk.token_ids)
        targets = torch.tensor(chunk.token_ids[1:])
        nll.append(torch.nn.functional.cross_entropy(logits.values[:-1], targets).item())
        greedy.append(logits.best)
    prompts = [chunk.token_ids[:PROMPT_TOKENS] for chunk in chunks[:num_prompts]]
    generated = reader.generate(prompts, max_tokens)
    executor.close()
    return Reading(np.array(nll), np.array(greedy), generated, executor.notes, time.perf_counter() - started_s)


def compare(setting: str, reading: Reading, reference: Reading, chunks: list[Chunk]) -> Comparison:
    """Pair a reading with the reference's, chunk by chunk and prompt by prompt."""
    difference = reading.nll - reference.nll
    picks = np.random.default_rng(0).integers(0, len(chunks), (RESAMPLES, len(chunks)))
    low, high = np.quantile(np.expm1(difference[picks].mean(1)), (0.025, 0.975))
    sources = np.array([chunk.source for chunk in chunks])
    same = reading.generated == reference.generated
    equal_tokens = np.where(same.all(1), same.shape[1], same.argmin(1))
    return Comparison(
        setting=setting,
        perplexity=math.exp(reading.nll.mean()),
        relative_difference=math.expm1(difference.mean()),
        interval=(float(low), float(high)),
        by_source={
            source: math.expm1(difference[sources == source].mean()) for source in dict.fromkeys(sources.tolist())
        },
        same_greedy_token=float((reading.greedy == reference.greedy).mean()),
        same_generation=float(same.all(1).mean()),
        median_equal_tokens=float(np.median(equal_tokens)),
        duration_s=reading.duration_s,
        notes=reading.notes,
    )


def runtime_config(setting: str) -> RuntimeConfig:
    """Read `name=value,name=value` as the command line reads the fields of a `RuntimeConfig`."""
    parser = argparse.ArgumentParser(prog=setting, usage="name=value,...", add_help=False, allow_abbrev=False)
    config.add_flags(parser, RuntimeConfig)
    flags = [f"{config.flag(name)}={value}" for name, _, value in (part.partition("=") for part in setting.split(","))]
    try:
        return config.from_args(RuntimeConfig, parser.parse_args(flags))
    except ValueError as error:
        raise SystemExit(f"--setting {setting}: {error}") from error


def describe(one: Comparison, max_tokens: int) -> str:
    low, high = one.interval
    by_source = ", ".join(f"{source} {value:+.2%}" for source, value in one.by_source.items())
    return (
        f"{one.setting}, {one.duration_s:.0f} s. {one.notes[0]}\n"
        f"  perplexity {one.perplexity:.4f}: {one.relative_difference:+.2%} [{low:+.2%}, {high:+.2%}] ({by_source})\n"
        f"  greedy tokens: {one.same_greedy_token:.2%} the same after the same text; {one.same_generation:.1%} of the "
        f"generations the same, in the median {one.median_equal_tokens:g} of {max_tokens} tokens before the first other"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setting", action="append", required=True, help="RuntimeConfig fields: name=value,...")
    parser.add_argument("--reference", default=REFERENCE, help="(default: %(default)s)")
    parser.add_argument("--model", help="as for inflight; absent: the built-in model")
    parser.add_argument(
        "--text", type=Path, nargs="+", default=[], help="plain text, or prompts as .jsonl or .jsonl.gz"
    )
    parser.add_argument("--num-tokens", type=int, default=20_000, help="rounded up to whole chunks of every text")
    parser.add_argument("--chunk-tokens", type=int, default=512)
    parser.add_argument(
        "--num-prompts", type=int, default=16, help=f"the first {PROMPT_TOKENS} tokens of so many chunks"
    )
    parser.add_argument("--max-tokens", type=int, default=64, help="generated for each prompt")
    parser.add_argument("--json", type=Path, help="write everything to this file")
    args = parser.parse_args()
    if args.chunk_tokens < PROMPT_TOKENS or min(args.num_tokens, args.num_prompts, args.max_tokens) < 1:
        parser.error(f"chunks have at least {PROMPT_TOKENS} tokens, and all numbers are positive")
    runtimes = {setting: runtime_config(setting) for setting in (args.reference, *args.setting)}
    files = resolve(args.model)
    chunks = make_chunks(texts(args.text), Tokenizer.load(files.path), args.num_tokens, args.chunk_tokens)

    versions = {name: module.__version__ for name, module in (("inflight", inflight), ("torch", torch), ("numpy", np))}
    print(f"{files.name}; {', '.join(f'{k} {v}' for k, v in versions.items())}, Python {platform.python_version()}")
    sources = sorted({chunk.source for chunk in chunks})
    num_prompts = min(args.num_prompts, len(chunks))
    print(
        f"{len(chunks)} chunks of {args.chunk_tokens} tokens from {', '.join(sources)}: "
        f"{len(chunks) * (args.chunk_tokens - 1):,} predicted tokens; "
        f"{num_prompts} generations of {args.max_tokens} tokens from {PROMPT_TOKENS}"
    )
    reference = read(files, runtimes[args.reference], chunks, num_prompts, args.max_tokens)
    print(
        f"reference {args.reference}: perplexity {math.exp(reference.nll.mean()):.4f}, {reference.duration_s:.0f} s\n"
    )
    comparisons = []
    for setting in args.setting:
        reading = read(files, runtimes[setting], chunks, num_prompts, args.max_tokens)
        comparisons.append(compare(setting, reading, reference, chunks))
        print(describe(comparisons[-1], args.max_tokens), flush=True)
    if args.json:
        report = {
            "model": files.name,
            "versions": versions | {"python": platform.python_version()},
            "reference": asdict(runtimes[args.reference]),
            "reference_perplexity": math.exp(reference.nll.mean()),
            "num_chunks": len(chunks),
            "chunk_tokens": args.chunk_tokens,
            "num_prompts": num_prompts,
            "max_tokens": args.max_tokens,
            "comparisons": [asdict(one) | {"runtime": asdict(runtimes[one.setting])} for one in comparisons],
        }
        args.json.write_text(json.dumps(report, indent=1) + os.linesep)


if __name__ == "__main__":
    main()
