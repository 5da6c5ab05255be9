"""What /metrics says of the KV memory is what the step log says, counted a second time."""

from __future__ import annotations

from collections import Counter

import pytest

from inflight.core.output import SchedulerStats
from inflight.engine.recorder import Aborted, Line, Scheduled, Updated
from inflight.metrics.prometheus import PrometheusMetrics
from metrics.test_prometheus import samples
from metrics.worlds import BYTES_PER_BLOCK, Watched, watch

SEEDS = range(60)


def recount(lines: list[Line], prefix_cache: bool) -> Counter[str]:
    """From the lines alone: where each sequence stood, what it lost, and what was copied."""
    counted: Counter[str] = Counter()
    stood: dict[tuple[str, int], int] = {}
    prompts = {
        new.seq_id: len(new.prompt_token_ids)
        for line in lines
        if isinstance(line, Scheduled)
        for new in line.output.new
    }
    output = None
    for line in lines:
        match line:
            case Scheduled(_, output):
                for seq_id in output.preempted:
                    swapped = seq_id in output.swapped_out
                    counted["swap" if swapped else "recompute"] += 1
                    counted["lost"] += 0 if swapped else stood.pop(seq_id)
                for row in output.scheduled:
                    if row.seq_id in prompts:
                        counted["queries"] += prompts.pop(row.seq_id) * prefix_cache
                        counted["hits"] += row.start
                    stood[row.seq_id] = row.start + len(row.token_ids)
            case Updated() if line.failure is not None:
                stood |= {row.seq_id: row.start for row in output.scheduled}
                counted["lost"] += sum(stood.pop(seq_id, 0) for seq_id in output.swapped_out)
            case Updated():
                counted["out"] += sum(copy.to_host for copy in output.copies)
                counted["in"] += sum(not copy.to_host for copy in output.copies)
                counted["copies_s"] += line.result.copies_s
            case Aborted(_, request_id):
                stood = {seq_id: count for seq_id, count in stood.items() if seq_id[0] != request_id}
    return counted


def told(seen: Watched) -> dict[str, float]:
    found = samples(seen.metrics)
    return {
        "recompute": found["inflight_preemptions_total", (("mode", "recompute"),)],
        "swap": found["inflight_preemptions_total", (("mode", "swap"),)],
        "lost": found["inflight_preempted_tokens_total", ()],
        "queries": found["inflight_prefix_cache_queries_total", ()],
        "hits": found["inflight_prefix_cache_hits_total", ()],
        "out": found["inflight_swapped_blocks_total", (("direction", "out"),)],
        "in": found["inflight_swapped_blocks_total", (("direction", "in"),)],
        "copies_s": found["inflight_swap_seconds_total", ()],
    }


@pytest.fixture(scope="module")
def worlds() -> list[Watched]:
    return [watch(seed, "reuse") for seed in SEEDS]


def test_the_counters_are_those_of_the_log(worlds: list[Watched]) -> None:
    total: Counter[str] = Counter()
    for seen in worlds:
        counted = recount(seen.lines, seen.world.config.prefix_cache != "none")
        assert told(seen) == {name: counted[name] for name in told(seen)}
        total += counted
    assert min(total[name] for name in told(worlds[0])) > 0, total  # the worlds have some of everything


def test_bytes_are_those_of_the_blocks(worlds: list[Watched]) -> None:
    for seen in worlds:
        found = samples(seen.metrics)
        for direction in ((("direction", "out"),), (("direction", "in"),)):
            num_blocks = found["inflight_swapped_blocks_total", direction]
            assert found["inflight_swapped_bytes_total", direction] == num_blocks * BYTES_PER_BLOCK


def test_the_scheduler_counts_the_same(worlds: list[Watched]) -> None:
    for seen in worlds:
        stats, found = seen.stats[-1], told(seen)
        assert stats.num_preemptions == found["recompute"] + found["swap"]
        assert (stats.num_prefix_query_tokens, stats.num_prefix_hit_tokens) == (found["queries"], found["hits"])
        assert samples(seen.metrics)["inflight_prefix_cache_evicted_blocks_total", ()] == stats.num_evicted_blocks
        if not any(isinstance(line, Updated) and line.failure for line in seen.lines):
            assert (stats.num_swapped_out_blocks, stats.num_swapped_in_blocks) == (found["out"], found["in"])
    assert sum(seen.stats[-1].num_evicted_blocks for seen in worlds) > 0


def test_the_records_add_up_to_the_counters(worlds: list[Watched]) -> None:
    num_cached = 0
    for seen in worlds:
        records = [record for delta in seen.deltas for record in delta.ended]
        assert sum(record.num_preemptions for record in records) == seen.stats[-1].num_preemptions
        assert sum(record.num_tokens_lost for record in records) == told(seen)["lost"]
        assert all(0 <= record.num_cached_tokens < record.num_prompt_tokens for record in records)
        first_choices = {
            row.seq_id[0]: row.start
            for line in seen.lines
            if isinstance(line, Scheduled)
            for row in line.output.scheduled
            if row.seq_id[1] == 0 and row.seq_id in {new.seq_id for new in line.output.new}
        }
        assert {
            one.request_id: one.num_cached_tokens for one in records if one.request_id in first_choices
        } == first_choices
        num_cached += sum(first_choices.values())
    assert num_cached > 0


def test_the_gauges_lie_between_nothing_and_all_and_are_nothing_when_nobody_is_there(worlds: list[Watched]) -> None:
    names = ("usage_ratio", "slot_usage_ratio", "fragmentation_ratio", "shared_blocks")
    seen_stats = []
    for seen in worlds:
        for stats in (*seen.stats[::3], seen.stats[-1]):
            seen_stats.append(stats)
            seen.metrics.apply_stats(stats)
            found = samples(seen.metrics)
            usage, slots, waste, shared = (found[f"inflight_kv_cache_{name}", ()] for name in names)
            host = found["inflight_kv_host_usage_ratio", ()]
            assert 0 <= slots <= 1
            assert 0 <= host <= 1
            assert waste == pytest.approx(1 - slots if usage else 0)
            num_held = usage * stats.num_blocks
            assert shared <= num_held + 1e-9
            assert found["inflight_kv_cache_cached_blocks", ()] <= stats.num_blocks - num_held + 1e-9
            if not stats.live:
                assert (usage, slots, waste, shared, host) == (0, 0, 0, 0, 0)
        assert not seen.stats[-1].live
    assert any(stats.num_shared_blocks for stats in seen_stats)
    assert any(stats.num_cached_blocks for stats in seen_stats)
    assert any(stats.num_free_host_blocks < stats.num_host_blocks for stats in seen_stats)


def test_an_engine_that_was_started_again_counts_anew() -> None:
    metrics = PrometheusMetrics()
    for stats in (
        SchedulerStats(num_prefix_query_tokens=100, num_prefix_hit_tokens=40, num_evicted_blocks=3),
        SchedulerStats(),  # what is reported when an engine is lost
        SchedulerStats(num_prefix_query_tokens=7, num_prefix_hit_tokens=5, num_evicted_blocks=1),
    ):
        metrics.apply_stats(stats)
    found = samples(metrics)
    names = ("queries", "hits", "evicted_blocks")
    assert [found[f"inflight_prefix_cache_{name}_total", ()] for name in names] == [107, 45, 4]
