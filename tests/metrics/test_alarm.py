"""The alarm before the KV memory is full: once for each crossing, whatever the steps in between."""

from __future__ import annotations

import logging

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inflight.core.output import SchedulerStats
from inflight.metrics.alarm import HIGH, LOW, KVAlarm
from inflight.metrics.delta import MetricsDelta
from inflight.metrics.prometheus import PrometheusMetrics
from inflight.metrics.report import Reporter

NUM_BLOCKS = 20


def holding(num_held: int) -> SchedulerStats:
    return SchedulerStats(
        num_running_seqs=3,
        num_waiting_seqs=5,
        num_preemptions=2,
        num_blocks=NUM_BLOCKS,
        num_free_blocks=NUM_BLOCKS - num_held,
        num_cached_blocks=NUM_BLOCKS - num_held,  # free, and of use: they do not count
    )


def test_the_warning_has_the_numbers_and_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    reporter = Reporter(PrometheusMetrics())
    with caplog.at_level(logging.INFO, "inflight.metrics.alarm"):
        for num_held in (0, 17, 18, 20, 0, 18, 15):
            reporter(MetricsDelta(), holding(num_held))
        for num_held in (15, 3):
            reporter.log_period(10.0)
            reporter(MetricsDelta(), holding(num_held))
        reporter.log_period(30.0)
    warning, info = caplog.records
    assert (warning.levelname, info.levelname) == ("WARNING", "INFO")
    assert "18 of 20 blocks (90.0 %) are held by 3 sequences, 5 wait, 2 preemptions so far" in warning.getMessage()
    assert "--kv-cache-memory-bytes" in warning.getMessage()
    assert info.getMessage() == "the KV cache has room again: at most 75.0 % of its blocks were held lately"


def test_an_engine_that_was_lost_holds_nothing(caplog: pytest.LogCaptureFixture) -> None:
    alarm = KVAlarm()
    with caplog.at_level(logging.INFO, "inflight.metrics.alarm"):
        for stats in (holding(20), SchedulerStats(), holding(0), holding(19)):
            alarm.watch(stats)
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(periods=st.lists(st.lists(st.integers(0, NUM_BLOCKS), max_size=6), max_size=12))
def test_one_warning_until_a_whole_period_was_calm(caplog: pytest.LogCaptureFixture, periods: list[list[int]]) -> None:
    caplog.clear()
    alarm = KVAlarm()
    expected: list[str] = []
    with caplog.at_level(logging.INFO, "inflight.metrics.alarm"):
        for levels in periods:
            for num_held in levels:
                alarm.watch(holding(num_held))
            alarm.end_period()
            peak = max(levels, default=0) / NUM_BLOCKS
            if peak >= HIGH and expected[-1:] != ["WARNING"]:
                expected.append("WARNING")
            elif peak < LOW and expected[-1:] == ["WARNING"]:
                expected.append("INFO")
    assert [record.levelname for record in caplog.records] == expected
