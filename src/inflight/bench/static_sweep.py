"""``inflight bench static-sweep``: one static batch of the same prompt, at every batch size."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from inflight.assemble import assemble
from inflight.bench.in_process import run_in_process
from inflight.bench.machine import versions
from inflight.config import EngineConfig, from_values
from inflight.core.errors import InflightError, StepFailed
from inflight.core.output import SchedulerOutput, StepResult
from inflight.hub.resolve import ModelFiles, resolve
from inflight.text.tokenizer import Tokenizer
from inflight.workload.item import WorkItem

PROMPT = "The future of artificial intelligence is " * 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepConfig:
    """The sweep. Raises ``ValueError`` for a value out of range."""

    batch_sizes: tuple[int, ...] = field(
        default=(1, 2, 4, 8, 16, 32, 64), metadata={"help": "sequences that share every forward pass, each from 1"}
    )
    prompt_tokens: int | None = field(
        default=None,
        metadata={
            "help": 'a prompt of so many tokens, from 1; none: "The future of artificial intelligence is ", 5 times'
        },
    )
    output_tokens: int = field(default=50, metadata={"help": "new tokens of each sequence, from 1"})

    def __post_init__(self) -> None:
        for value in (*self.batch_sizes, self.output_tokens, self.prompt_tokens or 1):
            if value < 1:
                raise ValueError(f"batch_sizes, prompt_tokens and output_tokens must be at least 1, got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """One batch. Nobody gets anything before all of it is done: a caller's time to first token is the duration."""

    batch_size: int
    num_prompt_tokens: int  # of each sequence
    num_output_tokens: int  # likewise
    duration_s: float
    first_token_s: float  # until the first token of every sequence was computed
    tpot_s: float | None  # from then on, for each further token of a sequence; None: there is none

    @property
    def tokens_per_s(self) -> float:
        """Output tokens of all sequences over the duration."""
        return self.batch_size * self.num_output_tokens / self.duration_s

    @property
    def amortised_ms_per_token(self) -> float:
        """Duration over output tokens of all sequences."""
        return 1e3 / self.tokens_per_s

    def as_text(self) -> str:
        """One line."""
        tpot = "undefined for one token" if self.tpot_s is None else f"{self.tpot_s:.5f} s/token"
        return (
            f"batch_size={self.batch_size}: duration {self.duration_s:.3f} s, throughput {self.tokens_per_s:.1f} "
            f"tokens/s, TTFT {self.duration_s:.3f} s (computed after {self.first_token_s:.3f} s), TPOT {tpot}, "
            f"amortised {self.amortised_ms_per_token:.3f} ms/token"
        )


REMARKS = (
    "TTFT: a static batch comes back together, so a caller sees its first token with its last one.",
    "TPOT: how fast a sequence grows once it has a first token; here as it is computed, since nobody sees it grow.",
    "amortised: duration / output tokens of the whole batch. It is no latency: it falls as the batch grows, while "
    "every caller waits longer.",
)


def static_sweep(config: SweepConfig, engine_values: Mapping[str, Any]) -> Iterator[SweepRow]:
    """Run each batch size on an engine of its own: once to warm up, once to measure.

    ``engine_values`` are settings of ``EngineConfig`` and its parts, by field name, but for the scheduler and its
    batch size. Raises ``ValueError`` for settings that cannot be run, ``InflightError`` if the engine or a request
    fails, ``KeyboardInterrupt``.
    """
    if taken := sorted(engine_values.keys() & {"scheduler", "batch_size"}):
        raise ValueError(f"the sweep sets {taken[0]} itself")
    files = resolve(from_values(EngineConfig, {**engine_values, "scheduler": "static"}).model)
    tokenizer = Tokenizer.load(files.path)
    prompt = _prompt(config, tokenizer)
    for batch_size in config.batch_sizes:
        values = {**engine_values, "scheduler": "static", "batch_size": batch_size}
        yield _run(from_values(EngineConfig, values), files, tokenizer, prompt, config.output_tokens, batch_size)


def _prompt(config: SweepConfig, tokenizer: Tokenizer) -> tuple[int, ...]:
    prompt = tuple(tokenizer.encode(PROMPT))
    if config.prompt_tokens is None:
        return prompt
    return tuple(prompt[index % len(prompt)] for index in range(config.prompt_tokens))


def _run(
    config: EngineConfig,
    files: ModelFiles,
    tokenizer: Tokenizer,
    prompt: tuple[int, ...],
    num_output_tokens: int,
    batch_size: int,
) -> SweepRow:
    items = [WorkItem(str(index), prompt, num_output_tokens) for index in range(batch_size)]
    ends_s: list[float] = []  # of the steps that gave tokens

    def on_step(output: SchedulerOutput, result: StepResult | StepFailed, at_s: float) -> None:
        if any(row.num_logits for row in output.scheduled):
            ends_s.append(time.perf_counter())

    engine = assemble(config, files, tokenizer)
    try:
        run_in_process(engine, items)
        start_s = time.perf_counter()
        outcomes = run_in_process(engine, items, on_step=on_step)
        duration_s = time.perf_counter() - start_s
    finally:
        engine.close()
    if len(outcomes) < len(items):
        raise KeyboardInterrupt
    for outcome in outcomes:
        if outcome.error is not None:
            raise InflightError(f"batch size {batch_size}: {outcome.error.message}")
    if len(ends_s) != num_output_tokens:
        raise InflightError(f"batch size {batch_size} does not fit the engine at once: {len(ends_s)} steps gave tokens")
    return SweepRow(
        batch_size=batch_size,
        num_prompt_tokens=len(prompt),
        num_output_tokens=num_output_tokens,
        duration_s=duration_s,
        first_token_s=ends_s[0] - start_s,
        tpot_s=(ends_s[-1] - ends_s[0]) / (num_output_tokens - 1) if num_output_tokens > 1 else None,
    )


def sweep_report(rows: list[SweepRow]) -> dict[str, Any]:
    """The report, ready for JSON."""
    return {
        "benchmark": "static-sweep",
        "rows": [
            asdict(row) | {"tokens_per_s": row.tokens_per_s, "amortised_ms_per_token": row.amortised_ms_per_token}
            for row in rows
        ],
        "remarks": list(REMARKS),
        "versions": versions(),
    }
