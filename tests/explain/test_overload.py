"""Queues of which the answer is known, and the error rate of the test itself."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from explain.logs import continuous_log, poisson_arrivals, request
from explain.test_timeline import timeline_of
from inflight.explain.overload import Sample, Verdict, judge, queue_samples


def one_server(seed: int, arrival_rate: float, service_rate: float, duration_s: float) -> list[Sample]:
    """The queue of a single server with exponential times (M/M/1)."""
    rng = random.Random(seed)
    now_s, length, samples = 0.0, 0, [(0.0, 0)]
    while now_s < duration_s:
        rate = arrival_rate + (service_rate if length else 0.0)
        now_s += rng.expovariate(rate)
        length += 1 if rng.random() < arrival_rate / rate else -1
        samples.append((now_s, length))
    return samples


def test_nobody_waits() -> None:
    for samples in ([], [(0.0, 0)], [(0.0, 0), (5.0, 0)]):
        assert judge(samples).verdict is Verdict.IDLE
        assert str(judge(samples)) == "queue: nobody waited"


def test_a_burst_drains() -> None:
    samples = [(0.0, 0), (1.0, 100), *((1.0 + index * 0.05, 100 - index) for index in range(1, 101))]
    verdict = judge(samples, drain_s=10.0)
    assert (verdict.verdict, verdict.max_queue) == (Verdict.BURST, 100)
    assert verdict.longest_queue_s == pytest.approx(5.0)


def test_a_burst_that_drains_slowly_is_a_backlog() -> None:
    samples = [(0.0, 100), *((index * 0.5, 100 - index) for index in range(1, 101))]
    verdict = judge(samples, drain_s=10.0)
    assert verdict.verdict is Verdict.BACKLOG
    assert verdict.slope_per_s == pytest.approx(-2.0, abs=0.4)


def test_steady_growth_is_found_to_the_number() -> None:
    verdict = judge([(float(second), 3 * second) for second in range(101)], window_s=50.0)
    assert verdict.verdict is Verdict.SUSTAINED
    assert verdict.slope_per_s == pytest.approx(3.0)
    assert verdict.slope_low_per_s <= 3.0 <= verdict.slope_high_per_s
    assert verdict.longest_queue_s == 99.0


def test_more_than_can_be_served_is_found_and_the_slope_is_the_excess() -> None:
    verdicts = [judge(one_server(seed, 20.0, 10.0, 120.0), window_s=60.0) for seed in range(50)]
    assert all(one.verdict is Verdict.SUSTAINED for one in verdicts)
    covered = sum(one.slope_low_per_s <= 10.0 <= one.slope_high_per_s for one in verdicts)
    assert covered >= 45  # the surest of several windows was picked: a little less than 99 %


def test_what_can_be_served_is_seldom_taken_for_overload() -> None:
    verdicts = [judge(one_server(seed, 8.0, 10.0, 120.0), window_s=60.0) for seed in range(200)]
    assert sum(one.verdict is Verdict.SUSTAINED for one in verdicts) <= 6


def test_times_and_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="ordered"):
        judge([(1.0, 1), (0.0, 2)])
    for settings in ({"drain_s": 0.0}, {"window_s": -1.0}, {"window_s": math.nan}):
        with pytest.raises(ValueError, match="must be above 0"):
            judge([(0.0, 1)], **settings)


def test_logs_of_a_run(tmp_path: Path) -> None:
    """All at once onto few seats drains in no time; much more than fits, for long, does not."""
    burst = [(0.0, request(f"r{index}", 10, 20)) for index in range(30)]
    samples = queue_samples(timeline_of(continuous_log(tmp_path / "burst", burst, 4)))
    assert judge(samples).verdict is Verdict.BURST
    flood = poisson_arrivals(1, 300, 24.0, 120)
    samples = queue_samples(timeline_of(continuous_log(tmp_path / "flood", flood, 4)))
    assert judge(samples, drain_s=5.0, window_s=10.0).verdict is Verdict.SUSTAINED
