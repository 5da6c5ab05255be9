"""From one run to its figures, in SI units; what is not defined is None, never 0."""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from inflight.bench.outcome import Outcome, run_duration_s
from inflight.bench.run_summary import jain_index
from inflight.compare.groups import Groups
from inflight.compare.run import Run
from inflight.compare.stamps import Stamps, pauses_s, read_stamps
from inflight.explain.kv_usage import fullest, kv_usage
from inflight.explain.log import EngineLog, open_log
from inflight.explain.overload import judge, queue_samples
from inflight.explain.read_timeline import read_timeline
from inflight.explain.timeline import Timeline
from inflight.metrics.summary import summarize
from inflight.schedulers.config import RequestLevelConfig
from inflight.sim.cost import LinearStepCost
from inflight.workload.item import WorkItem

Samples = dict[str, list[float]]


def measure(run: Run, items: Sequence[WorkItem], groups: Groups, alone: LinearStepCost) -> dict[str, Any]:
    """The figures of one run of the items; ``alone`` is what a step costs that one request has for itself."""
    log = open_log(run.log)
    timeline, stamps = read_timeline(log), read_stamps(log)
    answered = [outcome for outcome in run.outcomes if outcome.error is None]
    duration_s = run_duration_s(run.outcomes)
    computed, seats = timeline.slots.shares()
    return {
        "num_requests": len(run.outcomes),
        "num_failed": len(run.outcomes) - len(answered),
        "duration_s": duration_s,
        "throughput": _throughput(answered, duration_s),
        "latency": {
            name: {metric: summary(samples) for metric, samples in _samples(answered, stamps, members).items()}
            for name, members in groups.members.items()
        },
        "ledger": {name: float(share) for name, share in computed.items()},
        "seat_ledger": {name: float(share) for name, share in seats.items()},
        "slots": asdict(timeline.slots),
        "empty_while_waiting_share": _empty_while_waiting(timeline),
        "kv": _kv(log),
        "fairness": {name: _fairness(answered, items, members, alone) for name, members in groups.members.items()},
        "queue": _queue(timeline),
        "engine": _engine(log, timeline, run, duration_s),
        "output_sha256": None if run.scheduler_s is None else output_sha256(answered),
    }


def output_sha256(outcomes: Iterable[Outcome]) -> str:
    """The hash of a JSON object: each item's id and its token ids, sorted by id."""
    tokens = {outcome.item_id: outcome.token_ids for outcome in outcomes}
    return hashlib.sha256(msgspec.json.encode(tokens, order="sorted")).hexdigest()


def summary(samples: Sequence[float]) -> dict[str, float | int | None]:
    """Count, mean, and the percentiles by nearest rank."""
    of = summarize(samples)
    return {
        "count": of.count,
        "mean": statistics.fmean(samples) if samples else None,
        **{name: getattr(of, name) for name in ("p50", "p90", "p95", "p99")},
    }


def latency_samples(run: Run, groups: Groups) -> dict[str, Samples]:
    """The samples behind the percentiles, by group, to draw them."""
    stamps = read_stamps(open_log(run.log))
    answered = [outcome for outcome in run.outcomes if outcome.error is None]
    return {name: _samples(answered, stamps, members) for name, members in groups.members.items()}


def _throughput(answered: Sequence[Outcome], duration_s: float) -> dict[str, float | None]:
    num_in = sum(outcome.num_prompt_tokens for outcome in answered)
    num_out = sum(outcome.num_output_tokens for outcome in answered)
    counts = {
        "requests_per_s": len(answered),
        "input_tokens_per_s": num_in,
        "output_tokens_per_s": num_out,
        "total_tokens_per_s": num_in + num_out,
    }
    return {name: count / duration_s if duration_s > 0 else None for name, count in counts.items()}


def _samples(answered: Sequence[Outcome], stamps: Mapping[str, Stamps], members: frozenset[str]) -> Samples:
    chosen = [outcome for outcome in answered if outcome.item_id in members]
    computed = [stamps[outcome.item_id] for outcome in chosen]
    return {
        "ttft_s": _defined(chosen, lambda one: one.ttft_s),
        "tpot_s": _defined(chosen, lambda one: one.tpot_s),
        "itl_s": [gap_s for outcome in chosen for gap_s in outcome.itl_s],
        "e2e_s": _defined(chosen, lambda one: one.e2el_s),
        "queue_s": _defined(computed, lambda one: one.queue_s),
        "computed_ttft_s": _defined(computed, lambda one: one.ttft_s),
        "computed_tpot_s": _defined(computed, lambda one: one.tpot_s),
    }


def _defined(ones: Iterable[Any], value: Callable[[Any], float | None]) -> list[float]:
    return [found for one in ones if (found := value(one)) is not None]


def _empty_while_waiting(timeline: Timeline) -> float:
    """The share of all seats that held nothing in a step although somebody waited for each of them."""
    blocked = sum(min(step.slots.empty, step.num_waiting) for step in timeline.steps)
    return blocked / timeline.slots.seat_steps if timeline.slots.seat_steps else 0.0


def _kv(log: EngineLog) -> dict[str, Any]:
    usages = kv_usage(log)
    allocated = sum(usage.allocated_slots for usage in usages)
    written = sum(usage.written_slots for usage in usages)
    capacity_slots = log.started.num_blocks * log.started.block_size
    return {
        "allocator": log.config.kv_allocator,
        "capacity_slots": capacity_slots,
        "reserved_unused_share": 1 - written / allocated if allocated else None,
        "peak_allocated_share": fullest(usages).allocated_slots / capacity_slots if usages else None,
        "max_concurrency": max((usage.num_rows for usage in usages), default=0),
    }


def alone_s(item: WorkItem, cost: LinearStepCost) -> float:
    """What a request would take by itself: its prompt in one step, then a step for each further token."""
    num_in, num_decodes = len(item.prompt_token_ids), item.max_tokens - 1
    prefill_s = cost.constant_s + cost.per_token_s * num_in + cost.per_context_token_s * num_in * (num_in + 1) / 2
    contexts = num_decodes * num_in + num_decodes * (num_decodes + 1) / 2
    return prefill_s + num_decodes * (cost.constant_s + cost.per_token_s) + cost.per_context_token_s * contexts


def _fairness(
    answered: Sequence[Outcome], items: Sequence[WorkItem], members: frozenset[str], alone: LinearStepCost
) -> dict[str, float | int | None]:
    by_id = {item.item_id: item for item in items}
    chosen = [outcome for outcome in answered if outcome.item_id in members]
    slowdowns = [
        outcome.e2el_s / ideal_s for outcome in chosen if (ideal_s := alone_s(by_id[outcome.item_id], alone)) > 0
    ]
    per_token = [outcome.e2el_s / outcome.num_output_tokens for outcome in chosen if outcome.num_output_tokens]
    return {
        "jain_index_of_slowdown": jain_index(slowdowns),
        "jain_index_of_e2e_per_output_token": jain_index(per_token),
        "median_slowdown": summarize(slowdowns).p50,
        "max_slowdown": max(slowdowns, default=None),
    }


def _queue(timeline: Timeline) -> dict[str, Any]:
    overload = judge(queue_samples(timeline))
    return {
        "verdict": overload.verdict.value,
        "longest_s": overload.longest_queue_s,
        "max_length": overload.max_queue,
        "growth_per_s": overload.slope_per_s,
        "text": str(overload),
    }


def _engine(log: EngineLog, timeline: Timeline, run: Run, duration_s: float) -> dict[str, Any]:
    num_steps = len(timeline.steps)
    done = list(log.steps())
    step_s = sum(one.update.result.duration_s for one in done if one.update.result is not None)
    # A batch is what leaves together: requests, or, where it is decided anew each time, the rows of a step.
    rows, leaving = [len(one.output.scheduled) for one in done], [len(one.output.new) for one in done if one.output.new]
    sizes = leaving if isinstance(log.config, RequestLevelConfig) else rows
    return {
        "num_steps": num_steps,
        "mean_batch_size": statistics.fmean(sizes) if sizes else None,
        "mean_rows_per_step": statistics.fmean(rows) if rows else None,
        "mean_step_s": step_s / num_steps if num_steps else None,
        "busy_share": step_s / duration_s if duration_s > 0 else None,
        "scheduler_s_per_step": run.scheduler_s / num_steps if run.scheduler_s is not None and num_steps else None,
        "scheduler_share": run.scheduler_s / duration_s if run.scheduler_s is not None and duration_s > 0 else None,
        "pause_s": summary(pauses_s(log)),
    }
