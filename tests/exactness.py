"""Greedy tokens against transformers' `generate`, and seeded tokens against themselves, in many settings of batching.

`tests/runtime/test_exactness.py` runs a small version. The large one reads real prompts from files:

    python tests/exactness.py --prompts FOLDER [--num-prompts 48] [--new-tokens 64]

FOLDER holds *.jsonl files with `turns`, `prompt` or `question` fields. A greedy token may differ from the reference
only where the reference's two best logits lie within 1e-4 of each other; each such place is listed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from inflight.core.output import MAIN_LANE
from inflight.core.request import Request, SamplingParams
from inflight.engine.clock import WallClock
from inflight.engine.core import EngineCore
from inflight.hub.resolve import resolve
from inflight.runtime.config import RuntimeConfig
from inflight.runtime.load import default_num_threads, load_executor
from inflight.runtime.runner import ModelExecutor
from inflight.schedulers.config import ContinuousConfig
from inflight.schedulers.continuous import ContinuousScheduler
from inflight.text.stream import TextStream
from inflight.text.tokenizer import Tokenizer

TIE = 1e-4


@dataclass(frozen=True)
class Setting:
    """How requests are batched; ``num_blocks`` below what they need together makes preemptions."""

    max_num_seqs: int
    max_num_batched_tokens: int
    num_blocks: int | None = None

    def __str__(self) -> str:
        pool = "" if self.num_blocks is None else f", {self.num_blocks} blocks"
        return f"max_num_seqs {self.max_num_seqs}, max_num_batched_tokens {self.max_num_batched_tokens}{pool}"


@dataclass(frozen=True)
class Reference:
    """transformers' greedy tokens of one prompt, and how far the best logit was ahead of the second, per token."""

    token_ids: list[int]
    margins: list[float]


def reference(path: Path, prompts: Sequence[Sequence[int]], num_new: int) -> list[Reference]:
    """One prompt at a time through transformers, loaded by transformers; fp32, end tokens ignored."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    references = []
    for prompt in prompts:
        out = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=num_new,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        best = [logits[0].topk(2).values for logits in out.logits]
        margins = [float(two[0] - two[1]) for two in best]
        references.append(Reference(out.sequences[0, len(prompt) :].tolist(), margins))
    return references


def generate(
    executor: ModelExecutor,
    tokenizer: Tokenizer,
    setting: Setting,
    prompts: Sequence[Sequence[int]],
    sampling: Sequence[SamplingParams],
) -> tuple[list[list[int]], int]:
    """The tokens of every prompt, all submitted at once, and the number of preemptions."""
    num_blocks = setting.num_blocks or executor.capacity.num_blocks
    config = ContinuousConfig(
        max_num_seqs=setting.max_num_seqs,
        max_num_batched_tokens=setting.max_num_batched_tokens,
        max_model_len=min(2048, num_blocks * executor.capacity.block_size),
        max_preemptions=1000,
    )
    scheduler = ContinuousScheduler(config, num_blocks, executor.capacity.block_size)
    core = EngineCore(scheduler, {MAIN_LANE: executor}, lambda params: TextStream(tokenizer, params), WallClock())
    for index, (prompt, params) in enumerate(zip(prompts, sampling, strict=True)):
        core.add(Request(request_id=str(index), prompt_token_ids=tuple(prompt), sampling=params))
    tokens: list[list[int]] = [[] for _ in prompts]
    while core.has_work:
        for delta in core.step():
            if delta.error is not None:
                raise RuntimeError(delta.error)
            tokens[int(delta.seq_id[0])] += [token.token_id for token in delta.tokens]
    core.step()
    return tokens, scheduler.stats().num_preemptions


def differences(tokens: Sequence[Sequence[int]], references: Sequence[Reference]) -> Iterator[tuple[int, int, float]]:
    """(prompt, position, margin) of the first token of each prompt that differs from its reference."""
    for index, (got, wanted) in enumerate(zip(tokens, references, strict=True)):
        for position, (ours, theirs) in enumerate(zip(got, wanted.token_ids, strict=True)):
            if ours != theirs:
                yield index, position, wanted.margins[position]
                break


def read_prompts(folder: Path, tokenizer: Tokenizer, num_prompts: int, shortest: int, longest: int) -> list[list[int]]:
    """Real prompts, spread evenly over their lengths in tokens."""
    texts = set()
    for path in sorted(folder.glob("*.jsonl*")):
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            for line in file:
                record = json.loads(line)
                texts |= set(record.get("turns") or [record[key] for key in ("prompt", "question") if key in record])
    prompts = sorted((tokenizer.encode(text) for text in sorted(texts)), key=len)
    prompts = [prompt for prompt in prompts if shortest <= len(prompt) <= longest]
    step = (longest - shortest) / (num_prompts - 1)
    chosen: list[list[int]] = []
    for index in range(num_prompts):
        nearest = min(prompts, key=lambda prompt: abs(len(prompt) - shortest - index * step))
        prompts.remove(nearest)
        chosen.append(nearest)
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--num-prompts", type=int, default=48)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument(
        "--skip-settings", type=int, default=0, help="leave out so many of the settings, the first ones"
    )
    parser.add_argument("--num-threads", type=int, default=default_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.num_threads)
    path = resolve(None).path
    tokenizer = Tokenizer.load(path)
    prompts = read_prompts(args.prompts, tokenizer, args.num_prompts, 5, 700)
    lengths = [len(prompt) for prompt in prompts]
    print(
        f"{len(prompts)} prompts of {min(lengths)} to {max(lengths)} tokens, {args.new_tokens} new tokens each, fp32, "
        f"{args.num_threads} threads, torch {torch.__version__}"
    )
    start_s = time.perf_counter()
    references = reference(path, prompts, args.new_tokens)
    print(f"transformers, one at a time: {time.perf_counter() - start_s:.0f} s")
    executor = load_executor(path, RuntimeConfig(dtype="float32", num_threads=args.num_threads))
    settings = [Setting(seqs, tokens) for seqs in (1, 7, 32) for tokens in (32, 256, 2048)]
    blocks_of_longest = -(-(max(lengths) + args.new_tokens) // 16)
    settings += [Setting(32, 256, num_blocks=blocks_of_longest + more) for more in (64, 28)]
    settings = settings[args.skip_settings :]
    greedy = [SamplingParams(temperature=0, max_tokens=args.new_tokens, ignore_eos=True)] * len(prompts)
    seeded = [
        SamplingParams(temperature=0.8, seed=1000 + index, max_tokens=args.new_tokens, ignore_eos=True)
        for index in range(len(prompts))
    ]
    first_seeded = None
    num_wrong = 0
    for setting in settings:
        start_s = time.perf_counter()
        tokens, num_preemptions = generate(executor, tokenizer, setting, prompts, greedy)
        elapsed_s = time.perf_counter() - start_s
        differing = list(differences(tokens, references))
        num_wrong += sum(margin > TIE for _, _, margin in differing)
        sampled, num_more = generate(executor, tokenizer, setting, prompts, seeded)
        first_seeded = first_seeded or sampled
        num_moved = sum(one != other for one, other in zip(sampled, first_seeded, strict=True))
        num_wrong += num_moved
        print(
            f"{setting}: {len(differing)} of {len(prompts)} differ from transformers, {num_moved} seeded ones differ "
            f"from the first setting; {num_preemptions} + {num_more} preemptions; {elapsed_s:.0f} s greedy",
            flush=True,
        )
        for index, position, margin in differing:
            verdict = "a tie" if margin <= TIE else "WRONG"
            print(f"  prompt {index} ({lengths[index]} tokens), token {position}: margin {margin:.2e}, {verdict}")
    print(f"{num_wrong} differences that are not ties")
    raise SystemExit(num_wrong > 0)


if __name__ == "__main__":
    main()
