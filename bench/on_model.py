"""Loads on the built-in model, in this process and in real time, each under a scheduler of its own. For the scripts."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from inflight.assemble import engine_around, largest_step
from inflight.bench.in_process import OnStep, run_in_process
from inflight.bench.machine import versions
from inflight.bench.outcome import Outcome
from inflight.core.output import MAIN_LANE, SchedulerOutput, SchedulerStats
from inflight.hub.resolve import resolve
from inflight.metrics.summary import percentile
from inflight.runtime.config import RuntimeConfig
from inflight.runtime.load import load_executor
from inflight.runtime.runner import ModelExecutor
from inflight.schedulers.config import ContinuousConfig
from inflight.schedulers.registry import make_scheduler
from inflight.text.tokenizer import Tokenizer
from inflight.workload.item import WorkItem

STORED = Path(__file__).parents[1] / "docs" / "kv_cache.json"


@dataclass(frozen=True)
class Run:
    outcomes: list[Outcome]  # in the order of the items
    stats: SchedulerStats  # after the last
    duration_s: float

    @property
    def output_sha256(self) -> str:
        return hashlib.sha256(repr([outcome.token_ids for outcome in self.outcomes]).encode()).hexdigest()

    @property
    def output_tokens_per_s(self) -> float:
        return sum(outcome.num_output_tokens for outcome in self.outcomes) / self.duration_s


class OnModel:
    """The built-in model, loaded once, with memory planned for the steps of ``config``."""

    def __init__(self, runtime: RuntimeConfig, config: ContinuousConfig) -> None:
        files = resolve(None)
        steps = partial(largest_step, config, runtime.block_size)
        self.executor: ModelExecutor = load_executor(files.path, runtime, steps)
        self.vocab_size = self.executor.model_config.vocab_size
        self._name = files.name
        self._tokenizer = Tokenizer.load(files.path)

    def run(
        self,
        config: ContinuousConfig,
        items: Sequence[WorkItem],
        num_blocks: int | None = None,
        max_concurrency: int | None = None,
        on_step: OnStep | None = None,
    ) -> Run:
        """Run the items under a new scheduler, over the first ``num_blocks`` blocks; raises if one of them fails."""
        capacity = self.executor.capacity
        scheduler = make_scheduler(
            config, num_blocks or capacity.num_blocks, capacity.block_size, capacity.num_host_blocks, b"bench"
        )
        engine = engine_around(self.executor, scheduler, config, self._tokenizer, None, self._name, ())
        started_s = time.perf_counter()
        outcomes = run_in_process(engine, items, max_concurrency, on_step=on_step)
        duration_s = time.perf_counter() - started_s
        ended = tuple((item.item_id, 0) for item in items)
        self.executor.execute(SchedulerOutput(MAIN_LANE, step=0, scheduled=(), finished=ended))
        by_id = {outcome.item_id: outcome for outcome in outcomes}
        ordered = [by_id[item.item_id] for item in items]
        for outcome in ordered:
            if outcome.error is not None:
                raise RuntimeError(f"request {outcome.item_id}: {outcome.error.message}")
        return Run(ordered, scheduler.stats(), duration_s)


def percentiles(samples: Iterable[float | None]) -> dict[str, float]:
    """p50 and p99 of the samples that there are."""
    ordered = sorted(sample for sample in samples if sample is not None)
    return {"p50": percentile(ordered, 0.5), "p99": percentile(ordered, 0.99)}


def save(section: str, figures: dict[str, Any], path: Path = STORED) -> None:
    """Put the figures of one script into the file from which docs/kv_cache.md is written."""
    stored = json.loads(path.read_text()) if path.exists() else {}
    stored[section] = {**figures, "versions": versions()}
    path.write_text(json.dumps(stored, indent=1) + "\n")
