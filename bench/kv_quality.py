"""What each KV format costs in quality and saves in memory, next to float32 KV with the same weights.

python bench/kv_quality.py --prompts mt_bench_question.jsonl     measure, write docs/kv_formats.json and .md
python bench/kv_quality.py --from docs/kv_formats.json           measure nothing: make the page from what was measured

Perplexity is that of the texts of `bench/quality.py`, each chunk one step. Greedy tokens are those of real prompts
(a .jsonl file with a `prompt`, or `turns`, a line; absent: beginnings of the same texts), told to go on for a fixed
number of tokens.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from kv_quality_doc import page
from numpy.typing import NDArray
from quality import Reader, compare, read
from quality_texts import make_chunks, texts

from inflight.bench.machine import versions
from inflight.core.request import TokenId
from inflight.hub.resolve import ModelFiles, resolve
from inflight.runtime.config import RuntimeConfig
from inflight.runtime.load import load_executor
from inflight.runtime.models.base import ModelConfig
from inflight.text.tokenizer import Tokenizer

DOCS = Path(__file__).parents[1] / "docs"
FORMATS = ("float32", "bfloat16", "int8", "int4")  # the first is what the others are held against
LENGTHS = ((200, 100), (1000, 200), (4000, 500))  # prompt and output tokens of a caller
NUM_BLOCKS = 2048
BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Answers:
    """What was generated with one format, and the bytes that it takes."""

    tokens: NDArray[np.int64]  # [num_prompts, max_tokens]
    bytes_per_block: int
    model: ModelConfig
    kernels: str


def answer(
    files: ModelFiles, runtime: RuntimeConfig, prompts: Sequence[tuple[TokenId, ...]], max_tokens: int
) -> Answers:
    """Go on with each prompt by itself, greedily and past any end."""
    executor = load_executor(files.path, runtime)
    reader = Reader(executor)
    tokens = np.concatenate([reader.generate([prompt], max_tokens) for prompt in prompts])
    found = Answers(tokens, executor.capacity.bytes_per_block, executor.model_config, executor.notes[0])
    executor.close()
    return found


def agreement(found: NDArray[np.int64], reference: NDArray[np.int64]) -> dict[str, float]:
    """How far generations agree: a share of all tokens, place by place, and the mean number before the first other."""
    same = found == reference
    before = np.where(same.all(1), same.shape[1], same.argmin(1))
    return {
        "same_tokens": float(same.mean()),
        "same_generations": float(same.all(1).mean()),
        "mean_tokens_before_other": float(before.mean()),
    }


def callers(num_blocks: int, lengths: Sequence[tuple[int, int]]) -> list[int]:
    """How many callers of each length fit into so many blocks at once, each with all of its blocks."""
    return [num_blocks // -(-sum(pair) // BLOCK_SIZE) for pair in lengths]


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Read and generate in every format; the result, ready for JSON."""
    files = resolve(args.model)
    tokenizer = Tokenizer.load(files.path)
    chunks = make_chunks(texts([]), tokenizer, args.num_tokens, args.chunk_tokens)
    prompts = [chunk.token_ids[:64] for chunk in chunks]
    if args.prompts is not None:
        lines = [json.loads(line) for line in args.prompts.read_text().splitlines()]
        words = [(line.get("turns") or [line["prompt"]])[0] for line in lines]
        prompts = [tuple(tokenizer.encode(one)) for one in words]
    prompts = prompts[:: max(1, len(prompts) // args.num_prompts)][: args.num_prompts]
    readings, answers = {}, {}
    for name in FORMATS:
        runtime = RuntimeConfig(
            quantization=args.quantization,
            kv_cache_dtype=name,
            num_gpu_blocks_override=NUM_BLOCKS,
            block_size=BLOCK_SIZE,
        )
        readings[name] = read(files, runtime, chunks, 1, 1)
        answers[name] = answer(files, runtime, prompts, args.max_tokens)
        print(f"{name}: perplexity {math.exp(readings[name].nll.mean()):.4f}", flush=True)
    formats = {}
    for name in FORMATS:
        comparison = asdict(compare(name, readings[name], readings[FORMATS[0]], chunks))
        num_blocks = args.kv_memory_bytes // answers[name].bytes_per_block
        formats[name] = {
            "bytes_per_token": answers[name].bytes_per_block / BLOCK_SIZE,
            "num_blocks": num_blocks,
            "callers": callers(num_blocks, LENGTHS),
            **{key: comparison[key] for key in ("perplexity", "relative_difference", "interval", "same_greedy_token")},
            **agreement(answers[name].tokens, answers[FORMATS[0]].tokens),
        }
    model = answers[FORMATS[0]].model
    return {
        "model": files.name,
        "versions": versions(),
        "settings": {
            "kernels": answers[FORMATS[0]].kernels,
            "layers": model.num_hidden_layers,
            "kv_heads": model.num_key_value_heads,
            "head_dim": model.head_dim,
            "block_size": BLOCK_SIZE,
            "num_predicted_tokens": len(chunks) * (args.chunk_tokens - 1),
            "chunk_tokens": args.chunk_tokens,
            "prompts": args.prompts.name if args.prompts else None,
            "num_prompts": len(prompts),
            "max_tokens": args.max_tokens,
            "kv_memory_bytes": args.kv_memory_bytes,
            "lengths": LENGTHS,
        },
        "formats": formats,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", type=Path, metavar="JSON", dest="stored", help="take the whole run from a file")
    parser.add_argument("--out", type=Path, default=DOCS, help="the folder for kv_formats.json and kv_formats.md")
    parser.add_argument("--model", help="as for inflight; absent: the built-in model")
    parser.add_argument("--quantization", default="int8", help="of the weights (default: %(default)s)")
    parser.add_argument("--prompts", type=Path, metavar="JSONL", help="real prompts, spread evenly over the file")
    parser.add_argument("--num-prompts", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=64, help="generated for each prompt")
    parser.add_argument("--num-tokens", type=int, default=20_000, help="of text, rounded up to whole chunks")
    parser.add_argument("--chunk-tokens", type=int, default=512)
    parser.add_argument("--kv-memory-bytes", type=int, default=2**30, help="KV memory that callers share")
    args = parser.parse_args()
    numbers = (args.num_prompts, args.max_tokens, args.num_tokens, args.kv_memory_bytes)
    if min(numbers) < 1 or args.chunk_tokens < 64:
        parser.error("chunks have at least 64 tokens, and all numbers are positive")
    run = json.loads(json.dumps(measure(args))) if args.stored is None else json.loads(args.stored.read_text())
    (args.out / "kv_formats.json").write_text(json.dumps(run, indent=1) + "\n")
    (args.out / "kv_formats.md").write_text(page(run))


if __name__ == "__main__":
    main()
