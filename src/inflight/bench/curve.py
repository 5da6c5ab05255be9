"""``inflight bench curve``: throughput and latency at every number of callers, or at every batch size."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from inflight.bench.curve_files import write_curve
from inflight.bench.curve_report import curve_report
from inflight.bench.machine import versions
from inflight.bench.outcome import Outcome
from inflight.bench.repeated_prompts import NO_PREFIX_CACHE, without_prefix_cache
from inflight.bench.serve import run_with_bar, warm_up
from inflight.bench.target import Target, TargetConfig, open_target
from inflight.metrics.slo import SLO_HELP, Slo
from inflight.workload.build import build_workload
from inflight.workload.config import WorkloadConfig
from inflight.workload.item import WorkItem

MIN_REQUESTS = 8  # of a level
BATCH_SIZES = {"static": "batch_size", "dynamic": "max_batch_size"}  # scheduler: what a level sets


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveConfig:
    """The curve. Raises ``ValueError`` for a value out of range."""

    levels: tuple[int, ...] = field(
        default=(1, 2, 4, 8, 16, 32, 64),
        metadata={
            "help": "callers at once, ascending, each of whom waits before it asks again; with --scheduler "
            "static or dynamic the batch size as well"
        },
    )
    waves: int = field(
        default=4, metadata={"help": f"requests of each caller; from 1 (a level has at least {MIN_REQUESTS})"}
    )
    repeats: int = field(default=3, metadata={"help": "runs of each level, from 1; intervals need 2"})
    slo: tuple[str, ...] = field(default=(), metadata={"help": SLO_HELP})
    out: Path = field(default=Path("curve"), metadata={"help": "where to write: OUT.csv, OUT.svg and OUT.png"})

    def __post_init__(self) -> None:
        if (
            not self.levels
            or self.levels[0] < 1
            or any(a >= b for a, b in zip(self.levels, self.levels[1:], strict=False))
        ):
            raise ValueError(f"levels must ascend, from 1; got {','.join(map(str, self.levels))}")
        for name in ("waves", "repeats"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        Slo.parse(self.slo)

    def num_requests(self, level: int) -> int:
        """Requests of one run."""
        return max(MIN_REQUESTS, level * self.waves)


def bench_curve(
    config: CurveConfig,
    target_config: TargetConfig,
    workload_config: WorkloadConfig,
    engine_values: Mapping[str, Any],
) -> dict[str, Any]:
    """Run every level ``repeats`` times; write the files and return the report, ready for JSON.

    Each round runs the levels one after the other, with prompts of its own where they are drawn; where they are not,
    they come again, and an engine of our own has no prefix cache unless that is asked for. A batch size belongs
    to an engine: there every run has one of its own. Raises what ``bench_serve`` raises, ``InflightError`` for a run
    without an answer, and ``KeyboardInterrupt`` for one that was broken off.
    """
    if workload_config.request_rate is not None or workload_config.arrival is not None:
        raise ValueError("a curve has callers that wait for their answers: no request_rate, no arrival")
    if (size := _size_field(engine_values)) in engine_values:
        raise ValueError(f"the curve sets {size} itself: to each of its levels")
    if target_config.base_url is None:
        engine_values = without_prefix_cache(engine_values)
    cache_notes = [NO_PREFIX_CACHE] if engine_values.get("enable_prefix_caching") is False else []
    runs: dict[int, list[list[Outcome]]] = {level: [] for level in config.levels}
    about: dict[str, Any] = {}
    pools: dict[int, Iterator[WorkItem]] = {}
    with closing(_rounds(config, target_config, engine_values)) as rounds:
        for number, level, target in rounds:
            if number not in pools:
                pools[number], notes = _pool(config, workload_config, target, number)
                about["workload"] = [*notes, *cache_notes]
            warm_up(target, list(islice(pools[number], level)), level, level)
            items = list(islice(pools[number], config.num_requests(level)))
            outcomes = run_with_bar(target, items, level, f"run {number + 1} of {config.repeats}, level {level}")
            if len(outcomes) < len(items):
                raise KeyboardInterrupt
            runs[level].append(outcomes)
            about |= {"model_id": target.model_id, "backend": target.backend, "target": target.notes}
    report = {**curve_report(runs, Slo.parse(config.slo)), **about, "versions": versions()}
    write_curve(report, config.out)
    return report


def _size_field(engine_values: Mapping[str, Any]) -> str | None:
    """What a level sets in an engine whose batches have a size; None: they have none."""
    return BATCH_SIZES.get(engine_values.get("scheduler", ""))


def _rounds(
    config: CurveConfig, target_config: TargetConfig, engine_values: Mapping[str, Any]
) -> Generator[tuple[int, int, Target], None, None]:
    """Each run as (number of the round, level, what to run it on)."""
    plan = [(number, level) for number in range(config.repeats) for level in config.levels]
    own = target_config.base_url is None
    if own and (size := _size_field(engine_values)) is not None:
        for number, level in plan:
            with open_target(target_config, {**engine_values, size: level}) as target:
                yield number, level, target
        return
    if own:  # the default number of seats would end the curve
        engine_values = {"max_num_seqs": config.levels[-1], **engine_values}
    with open_target(target_config, engine_values) as target:
        for number, level in plan:
            yield number, level, target


def _pool(
    config: CurveConfig, workload_config: WorkloadConfig, target: Target, number: int
) -> tuple[Iterator[WorkItem], list[str]]:
    """The items of a round, all at once and again from the first one once they are used up; and notes about them."""
    num_needed = sum(level + config.num_requests(level) for level in config.levels)
    drawn = workload_config.trace is None and (
        workload_config.prompts is None or workload_config.prompt_tokens is not None
    )
    if drawn and workload_config.num_requests is None:
        workload_config = replace(workload_config, num_requests=num_needed)
    workload_config = replace(workload_config, seed=workload_config.seed + number)
    workload = build_workload(workload_config, target.vocab_size, target.max_model_len, target.tokenizer.encode)
    notes = list(workload.notes)
    if len(workload.items) < num_needed:
        notes.append(f"used {num_needed / len(workload.items):.3g} times in a round: a prefix cache would tell")
    pool = (replace(item, item_id=str(index), arrival_s=0.0) for index, item in enumerate(cycle(workload.items)))
    return pool, notes
