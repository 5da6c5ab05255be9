import re

from inflight.core.errors import Reason
from inflight.core.output import SchedulerStats
from inflight.metrics import definitions
from inflight.metrics.delta import FirstToken, MetricsDelta, Outcome, RequestRecord
from inflight.metrics.prometheus import PrometheusMetrics
from inflight.metrics.slo import Slo


def samples(metrics: PrometheusMetrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
    }


def record(request_id: str, outcome: Outcome, tpot_s: tuple[float, ...] = ()) -> RequestRecord:
    return RequestRecord(request_id, outcome, 1, 3, 2, 0, 0, 0.5, 1.0, 2.0, tpot_s, 0.25)


def stats(**changes: int) -> SchedulerStats:
    fields = dict.fromkeys(SchedulerStats.__dataclass_fields__, 0) | changes
    return SchedulerStats(**fields)


def test_every_definition_has_a_valid_unique_name_with_its_unit() -> None:
    names = [metric.name for metric in definitions.ALL]
    assert len(set(names)) == len(names)
    for metric in definitions.ALL:
        assert re.fullmatch(r"inflight_[a-z0-9_]+", metric.name)
        assert (metric.kind is definitions.Kind.COUNTER) == metric.name.endswith("_total")
        assert (metric.unit == "s") == metric.name.removesuffix("_total").endswith("_seconds")
        assert (metric.kind is definitions.Kind.HISTOGRAM) == bool(metric.buckets)
        assert list(metric.buckets) == sorted(set(metric.buckets))
        assert metric.formula
        assert metric.help


def test_every_definition_is_exposed() -> None:
    metrics = PrometheusMetrics(slo=Slo(ttft_s=1.0))
    text = metrics.render().decode()
    for metric in definitions.ALL:
        assert f"# TYPE {metric.name} {metric.kind.value}" in text
        assert f"# HELP {metric.name} " in text


def test_deltas_add_up() -> None:
    metrics = PrometheusMetrics()
    metrics.set_block_size(16, 1024)
    metrics.apply(
        MetricsDelta(
            batch_rows=(3, 5),
            batch_tokens=(40, 5),
            first_tokens=(FirstToken("a", 0.5, 0.25, 10.75),),
            itl_s=(0.04, 0.06),
            itl_preempted_s=(2.0,),
            num_prompt_tokens=40,
            num_output_tokens=8,
            num_preemptions=3,
            num_swapped_out=1,
            num_tokens_lost=17,
            num_blocks_out=5,
            num_blocks_in=2,
            copies_s=0.5,
            num_engines_lost=1,
            rejected=(Reason.QUEUE_FULL, Reason.QUEUE_FULL, Reason.CONTEXT_LENGTH),
            ended=(record("a", Outcome.STOP, (0.05, 0.15)), record("b", Outcome.ABORTED)),
        )
    )
    metrics.apply(MetricsDelta(num_output_tokens=2, ended=(record("c", Outcome.STOP),)))
    seen = samples(metrics)
    assert seen["inflight_batch_size_sequences_sum", ()] == 8
    assert seen["inflight_batch_size_sequences_count", ()] == 2
    assert seen["inflight_batch_size_tokens_sum", ()] == 45
    assert seen["inflight_queue_time_seconds_sum", ()] == 0.5
    assert seen["inflight_prefill_time_seconds_sum", ()] == 0.25
    assert seen["inflight_inter_token_latency_seconds_count", (("preempted", "false"),)] == 2
    assert seen["inflight_inter_token_latency_seconds_sum", (("preempted", "true"),)] == 2.0
    assert seen["inflight_time_per_output_token_seconds_count", ()] == 2
    assert seen["inflight_prompt_tokens_total", ()] == 40
    assert seen["inflight_generation_tokens_total", ()] == 10
    assert seen["inflight_preemptions_total", (("mode", "recompute"),)] == 2
    assert seen["inflight_preemptions_total", (("mode", "swap"),)] == 1
    assert seen["inflight_preempted_tokens_total", ()] == 17
    assert seen["inflight_swapped_blocks_total", (("direction", "out"),)] == 5
    assert seen["inflight_swapped_bytes_total", (("direction", "in"),)] == 2 * 1024
    assert seen["inflight_swap_seconds_total", ()] == 0.5
    assert seen["inflight_engine_losses_total", ()] == 1
    outcomes = {labels: value for (name, labels), value in seen.items() if name == definitions.REQUESTS.name}
    assert outcomes == {
        (("outcome", "stop"), ("reason", "")): 2,
        (("outcome", "aborted"), ("reason", "")): 1,
        (("outcome", "rejected"), ("reason", "queue_full")): 2,
        (("outcome", "rejected"), ("reason", "context_length_exceeded")): 1,
    }


def test_the_parts_of_ttft_add_up_to_it() -> None:
    metrics = PrometheusMetrics()
    metrics.apply(MetricsDelta(first_tokens=(FirstToken("a", 0.5, 0.25, 10.75),)))
    metrics.first_token_sent("a", arrival_s=10.0, now_s=10.875)
    seen = samples(metrics)
    parts = [seen[f"inflight_{part}_time_seconds_sum", ()] for part in ("queue", "prefill", "emit")]
    assert parts == [0.5, 0.25, 0.125]
    assert seen["inflight_time_to_first_token_seconds_sum", ()] == sum(parts)


def test_gauges_are_shares_of_what_there_is() -> None:
    metrics = PrometheusMetrics()
    metrics.set_block_size(16, 1024)
    metrics.apply_stats(
        stats(
            live=3,
            num_running_seqs=2,
            num_waiting_seqs=1,
            num_blocks=10,
            num_free_blocks=5,
            num_cached_blocks=2,
            num_shared_blocks=1,
            num_stored_tokens=60,
            num_host_blocks=8,
            num_free_host_blocks=6,
        )
    )
    seen = samples(metrics)
    assert seen["inflight_num_seqs_running", ()] == 2
    assert seen["inflight_num_seqs_waiting", ()] == 1
    assert seen["inflight_num_requests_live", ()] == 3
    assert seen["inflight_kv_cache_usage_ratio", ()] == 0.5
    assert seen["inflight_kv_cache_slot_usage_ratio", ()] == 0.75
    assert seen["inflight_kv_cache_fragmentation_ratio", ()] == 0.25
    assert seen["inflight_kv_cache_shared_blocks", ()] == 1
    assert seen["inflight_kv_cache_cached_blocks", ()] == 2
    assert seen["inflight_kv_host_usage_ratio", ()] == 0.25
    metrics.apply_stats(stats(num_blocks=10, num_free_blocks=10))
    seen = samples(metrics)
    assert seen["inflight_kv_cache_usage_ratio", ()] == seen["inflight_kv_cache_slot_usage_ratio", ()] == 0


def test_what_is_watched_as_it_rises_is_there_from_the_start() -> None:
    assert (
        samples(PrometheusMetrics())[definitions.REQUESTS.name, (("outcome", "rejected"), ("reason", "queue_full"))]
        == 0
    )


def test_two_instances_share_nothing() -> None:
    first, second = PrometheusMetrics(), PrometheusMetrics()
    first.apply(MetricsDelta(num_output_tokens=5, num_lost=3, num_lost_aborted=2))
    assert b'inflight_requests_total{outcome="failed",reason="engine_lost"} 3.0' in first.render()
    assert b'inflight_requests_total{outcome="aborted",reason="engine_lost"} 2.0' in first.render()
    assert samples(second)["inflight_generation_tokens_total", ()] == 0
