"""Arrival processes have the mean rate and the spread that they were asked for, and the same times for one seed."""

import math
from collections.abc import Callable
from itertools import pairwise
from statistics import fmean, pstdev

import pytest

from inflight.workload.arrivals import constant, gamma, mean_rate_per_s, on_off, poisson

NUM_DRAWS = 20_000
RATE = 8.0

PROCESSES: dict[str, Callable[[int, float, int], list[float]]] = {
    "constant": lambda count, rate, seed: constant(count, rate),
    "poisson": poisson,
    "gamma": lambda count, rate, seed: gamma(count, rate, 0.5, seed),
    "on_off": lambda count, rate, seed: on_off(count, rate, 3.0, 2.0, seed),
}


def gaps(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(times)]


@pytest.mark.parametrize("name", PROCESSES)
def test_times_are_sorted_from_zero_at_the_rate_and_the_same_for_a_seed(name: str) -> None:
    times = PROCESSES[name](NUM_DRAWS, RATE, 1)
    assert len(times) == NUM_DRAWS
    assert times[0] == 0.0
    assert min(gaps(times)) >= 0.0
    assert (NUM_DRAWS - 1) / times[-1] == pytest.approx(RATE, rel=0.03)
    assert times == PROCESSES[name](NUM_DRAWS, RATE, 1)
    assert (times == PROCESSES[name](NUM_DRAWS, RATE, 2)) == (name == "constant")
    assert PROCESSES[name](3, math.inf, 1) == [0.0, 0.0, 0.0]
    assert PROCESSES[name](1, RATE, 1) == [0.0]


@pytest.mark.parametrize("burstiness", [0.25, 0.5, 1.0, 4.0])
def test_gamma_gaps_vary_as_the_burstiness_says(burstiness: float) -> None:
    between = gaps(gamma(NUM_DRAWS, RATE, burstiness, seed=3))
    # The coefficient of variation is burstiness ** -0.5; its standard error over these draws is under 2 %.
    assert pstdev(between) / fmean(between) == pytest.approx(burstiness**-0.5, rel=0.05)


def test_constant_gaps_are_equal() -> None:
    assert gaps(constant(100, 4.0)) == [0.25] * 99


def test_poisson_is_gamma_of_burstiness_one() -> None:
    assert poisson(100, RATE, 5) == gamma(100, RATE, 1.0, 5)


def test_nothing_arrives_between_bursts_and_bursts_are_poisson() -> None:
    times = on_off(NUM_DRAWS, RATE, 3.0, 2.0, seed=4)
    assert max(time % 5.0 for time in times) <= 3.0 + 1e-9
    inside = [later - earlier for earlier, later in pairwise(times) if earlier // 5.0 == later // 5.0]
    assert fmean(inside) == pytest.approx(1 / (RATE * 5 / 3), rel=0.05)
    assert pstdev(inside) / fmean(inside) == pytest.approx(1.0, rel=0.05)


def test_bursts_without_a_pause_are_poisson() -> None:
    assert on_off(100, RATE, 3.0, 0.0, 7) == pytest.approx(poisson(100, RATE, 7))


def test_the_mean_rate_is_that_of_the_gaps() -> None:
    assert mean_rate_per_s([3.0 + at / 4 for at in range(200)]) == 4.0
    assert [mean_rate_per_s(times) for times in ([], [5.0], [5.0, 5.0])] == [None, None, None]


@pytest.mark.parametrize(
    ("draw", "named"),
    [
        (lambda: constant(0, 1.0), "num_requests"),
        (lambda: constant(1, 0.0), "rate_per_s"),
        (lambda: poisson(1, math.nan), "rate_per_s"),
        (lambda: gamma(1, 1.0, 0.0), "burstiness"),
        (lambda: on_off(1, 1.0, 0.0, 1.0), "on_s"),
        (lambda: on_off(1, 1.0, 1.0, -1.0), "off_s"),
    ],
)
def test_values_out_of_range_are_refused(draw: Callable[[], object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        draw()
