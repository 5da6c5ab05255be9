"""From what was run to ``results.json``: plain values, in SI units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

import msgspec

from inflight.bench.machine import versions
from inflight.bench.outcome import run_duration_s
from inflight.compare.config import CompareConfig
from inflight.compare.experiment import Experiment
from inflight.compare.folder import STEPS
from inflight.compare.groups import Groups
from inflight.compare.headlines import headlines
from inflight.compare.measure import measure
from inflight.compare.numbers import number, percent, seconds
from inflight.compare.run import Run
from inflight.compare.table import table
from inflight.config import LoadConfig
from inflight.workload.arrivals import mean_rate_per_s


def make_results(
    done: Experiment, groups: Groups, config: CompareConfig, settings: LoadConfig, command: str
) -> dict[str, Any]:
    """The results of an experiment, ready for JSON; ``docs/compare.md`` says what the keys are."""
    families = {}
    for variant in done.variants:
        if variant.name in done.runs:
            runs = in_speed_order(done.runs[variant.name])
            measured = [measure(run, done.workload.items, groups, done.alone) for run in runs]
            shown = runs.index(shown_run(runs))
            families[variant.name] = {
                "title": variant.title,
                "family": variant.family,
                "scheduler": asdict(variant.scheduler),
                "step_log": f"{STEPS}/{runs[shown].log.name}",
                **measured[shown],
                "runs": [_brief(one) for one in measured],
            }
    hashes = {one["output_sha256"] for figures in families.values() for one in figures["runs"]}
    same_output = None if done.step_cost is not None else len(hashes) == 1
    return {
        "benchmark": "compare",
        "date": datetime.now().strftime("%Y%m%d-%H%M%S"),
        "simulated": done.step_cost is not None,
        "interrupted": done.interrupted,
        "headlines": headlines(families, same_output),
        "notes": _notes(done, groups, config, families),
        "families": families,
        "same_output": same_output,
        "table": table(families),
        "offered": _offered(done),
        "groups": {
            "short_up_to_tokens": groups.short_up_to,
            "long_from_tokens": groups.long_from,
            "text": groups.as_text(),
        },
        "workload": {
            "notes": list(done.workload.notes),
            "num_requests": len(done.workload.items),
            "num_prompt_tokens": sum(len(item.prompt_token_ids) for item in done.workload.items),
            "num_output_tokens": sum(item.max_tokens for item in done.workload.items),
        },
        "settings": msgspec.to_builtins({"compare": asdict(config), "engine": asdict(settings)}, enc_hook=str),
        "machine": msgspec.to_builtins(done.machine) | {"max_model_len": done.max_model_len},
        "alone": asdict(done.alone),
        "step_cost": None if done.step_cost is None else _step_cost(done),
        "versions": versions(),
        "command": command,
    }


def shown_run(runs: list[Run]) -> Run:
    """The run that is shown: the one of median duration."""
    return in_speed_order(runs)[(len(runs) - 1) // 2]


def in_speed_order(runs: list[Run]) -> list[Run]:
    """The fastest run first."""
    return sorted(runs, key=lambda run: run_duration_s(run.outcomes))


def _brief(figures: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of every run, to tell how much they differ."""
    short, long = figures["latency"]["short"], figures["latency"]["long"]
    return {
        "duration_s": figures["duration_s"],
        "output_tokens_per_s": figures["throughput"]["output_tokens_per_s"],
        "short_ttft_p50_s": short["ttft_s"]["p50"],
        "short_ttft_p99_s": short["ttft_s"]["p99"],
        "long_e2e_p50_s": long["e2e_s"]["p50"],
        "output_sha256": figures["output_sha256"],
    }


def _offered(done: Experiment) -> dict[str, float | None]:
    """How fast requests come, beside what continuous batching can serve."""
    rate = mean_rate_per_s([item.arrival_s for item in done.workload.items])
    return {
        "rate_requests_per_s": rate,
        "capacity_requests_per_s": done.capacity.requests_per_s,
        "capacity_output_tokens_per_s": done.capacity.output_tokens_per_s,
        "load": None if rate is None else rate / done.capacity.requests_per_s,
    }


def _step_cost(done: Experiment) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(done.step_cost)
    del plain["machine"]
    return plain


def _notes(done: Experiment, groups: Groups, config: CompareConfig, families: Mapping[str, Any]) -> list[str]:
    """What must be known beside the figures, for people."""
    offered = _offered(done)
    rate = offered["rate_requests_per_s"]
    how = (
        "all requests are there at the start"
        if rate is None
        else f"{number(rate)} requests/s arrive, {percent(offered['load'])} of the capacity"
    )
    machine = done.machine
    notes = [
        *(f"workload: {note}" for note in done.workload.notes),
        groups.as_text(),
        f"capacity: continuous batching serves {number(done.capacity.requests_per_s)} requests/s, "
        f"{number(done.capacity.output_tokens_per_s)} output tokens/s, if all are there at the start; {how}",
        f"every variant: {config.num_seats} seats, sequences of up to {done.max_model_len:,} tokens, "
        f"{machine.num_blocks:,} KV blocks of {machine.block_size} tokens, no prefix cache; model {machine.model}",
    ]
    if "static" in config.chosen:
        wait = (
            "without a time-out: a batch waits until it is full, the last one until the trace has ended"
            if config.fill_timeout_ms is None
            else f"with a time-out of {config.fill_timeout_ms:g} ms"
        )
        notes.append(f"static: batches of {config.num_seats}, {wait}")
    if "dynamic" in config.chosen:
        notes.append(f"dynamic: batches of up to {config.num_seats}, a window of {config.max_wait_ms:g} ms")
    if "continuous" in config.chosen:
        chunk = done.continuous.max_num_batched_tokens
        notes.append(f"continuous: up to {chunk:,} tokens in a step with chunked prefill, any prompt whole without")
    if {"static", "dynamic"} & set(config.chosen):
        notes.append(
            "static and dynamic give a batch's answers out together: as a caller sees it, the first token comes with "
            "the last; times 'as computed' are those of the engine"
        )
    if (cost := done.step_cost) is not None:
        notes.append(
            f"step cost: {seconds(cost.cost.constant_s)} + {seconds(cost.cost.per_token_s)} a token + "
            f"{seconds(cost.cost.per_context_token_s)} a token attended to; off by {percent(cost.relative_error_p50)} "
            f"at the median and {percent(cost.relative_error_p90)} at the 90th percentile of the {cost.num_steps} "
            "steps that it was fitted to"
        )
    if failed := {name: one["num_failed"] for name, one in families.items() if one["num_failed"]}:
        notes.append(
            "FAILED REQUESTS, which no figure counts: " + ", ".join(f"{name} {count}" for name, count in failed.items())
        )
    if config.repeats > 1:
        notes.append(f"{config.repeats} runs of each variant; shown is the one of median duration")
    if done.interrupted:
        notes.append("interrupted: variants that are missing here were not run to their end")
    return notes
