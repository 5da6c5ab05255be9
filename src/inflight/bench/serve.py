"""``inflight bench serve``: a load on a server, and what its callers saw."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import cycle, islice
from typing import Any

from tqdm import tqdm

from inflight.bench.machine import versions
from inflight.bench.outcome import Outcome, run_duration_s
from inflight.bench.run_summary import details, summarize_run
from inflight.bench.target import Target, TargetConfig, open_target
from inflight.metrics.slo import SLO_HELP, Slo
from inflight.workload.arrivals import mean_rate_per_s
from inflight.workload.build import build_workload
from inflight.workload.config import WorkloadConfig
from inflight.workload.item import WorkItem


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """The load. Raises ``ValueError`` for a value out of range."""

    max_concurrency: int | None = field(
        default=None,
        metadata={
            "help": "callers at once, at most, from 1: each waits for its answer before it asks again; none: requests "
            "are sent when they arrive, whatever became of the others"
        },
    )
    num_warmups: int = field(default=1, metadata={"help": "requests before the run, which are not counted; from 0"})
    slo: tuple[str, ...] = field(default=(), metadata={"help": SLO_HELP})
    save_detailed: bool = field(
        default=False, metadata={"help": "put every request's times, lengths, text and error into the report"}
    )

    def __post_init__(self) -> None:
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise ValueError(f"max_concurrency must be at least 1, got {self.max_concurrency}")
        if self.num_warmups < 0:
            raise ValueError(f"num_warmups must be at least 0, got {self.num_warmups}")
        Slo.parse(self.slo)


def bench_serve(
    config: ServeConfig,
    target_config: TargetConfig,
    workload_config: WorkloadConfig,
    engine_values: Mapping[str, Any],
) -> dict[str, Any]:
    """Run the load once; return its report, with the keys of ``vllm bench serve --save-result``, ready for JSON.

    A request that fails is counted, by kind, and ends nothing. After Ctrl-C the report is of the requests that had
    ended. Raises ``ValueError`` for settings and work that cannot be run, ``OSError`` for a file that cannot be read,
    ``InflightError`` if the target cannot be reached or started.
    """
    with open_target(target_config, engine_values) as target:
        workload = build_workload(workload_config, target.vocab_size, target.max_model_len, target.tokenizer.encode)
        warm_up(target, workload.items, config.num_warmups, config.max_concurrency)
        outcomes = run_with_bar(target, workload.items, config.max_concurrency, "requests")
    slo = Slo.parse(config.slo)
    by_id = {outcome.item_id: outcome for outcome in outcomes}
    in_order = [by_id[item.item_id] for item in workload.items if item.item_id in by_id]
    figures = summarize_run(in_order, run_duration_s(in_order), slo)
    figures["inflight"] |= {
        "num_not_ended": len(workload.items) - len(outcomes),
        "num_shorter": sum(
            outcome.error is None and outcome.num_output_tokens < item.max_tokens
            for item in workload.items
            if (outcome := by_id.get(item.item_id)) is not None
        ),
        "workload": list(workload.notes),
        "target": list(target.notes),
        "versions": versions(),
    }
    return {
        "date": datetime.now().strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": target.backend,
        "backend": target.backend,
        "label": None,
        "model_id": target.model_id,
        "tokenizer_id": target.tokenizer_id,
        "num_prompts": len(workload.items),
        "request_rate": _rate(workload_config, workload.items),
        "burstiness": workload_config.burstiness,
        "max_concurrency": config.max_concurrency,
        **figures,
        **(details(in_order) if config.save_detailed else {}),
    }


def warm_up(target: Target, items: Sequence[WorkItem], num_warmups: int, max_concurrency: int | None) -> None:
    """Send the first items, again from the first one if there are fewer, all at once.

    Their prompts are sent backwards, so that no prefix cache knows those that are measured. Raises
    ``KeyboardInterrupt`` if that was broken off.
    """
    chosen = [
        replace(item, item_id=f"warm-up-{index}", arrival_s=0.0, prompt_token_ids=item.prompt_token_ids[::-1])
        for index, item in enumerate(islice(cycle(items), num_warmups))
    ]
    if chosen and len(target.run(chosen, max_concurrency, None)) < len(chosen):
        raise KeyboardInterrupt


def run_with_bar(target: Target, items: Sequence[WorkItem], max_concurrency: int | None, what: str) -> list[Outcome]:
    """Run the items on the target, with a progress bar on stderr if that is a terminal."""
    num_failed = 0
    with tqdm(total=len(items), desc=what, unit="req", file=sys.stderr, disable=None) as bar:

        def progress(outcome: Outcome) -> None:
            nonlocal num_failed
            if outcome.error is not None:
                num_failed += 1
                bar.set_postfix(failed=num_failed)
            bar.update()

        return target.run(items, max_concurrency, progress)


def _rate(config: WorkloadConfig, items: Sequence[WorkItem]) -> float | str:
    """Requests per second as asked for; of a trace with its own times the mean; ``inf``: all at once."""
    if config.request_rate is not None and config.request_rate < float("inf"):
        return config.request_rate
    rate = mean_rate_per_s([item.arrival_s for item in items])
    return "inf" if rate is None else rate
