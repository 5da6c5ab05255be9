"""The knee, the plateau and the fronts of curves that are written down."""

import pytest

from inflight.bench.intervals import Interval, mean_interval, t_quantile
from inflight.bench.knee import find_knee, pareto_front

LEVELS = (1, 2, 4, 8, 16)


def test_the_knee_is_the_first_level_whose_doubling_gains_less_than_five_percent() -> None:
    knee = find_knee(LEVELS, [[100.0], [190.0], [350.0], [360.0], [361.0]])
    assert knee.knee == 4
    assert knee.plateau == pytest.approx((350 + 360 + 361) / 3)
    assert [gain.mean for gain in knee.gains] == pytest.approx([0.9, 160 / 190, 10 / 350, 1 / 360])
    assert knee.falls_at == ()
    assert knee.as_text() == "knee at level 4: doubling it gains 2.9%, less than 5%; the plateau is 357 tokens/s"


def test_exactly_five_percent_is_no_knee() -> None:
    assert find_knee((1, 2), [[100.0], [105.1]]).knee is None
    assert find_knee((1, 2), [[100.0], [104.9]]).knee == 1


def test_a_curve_that_still_rises_has_none() -> None:
    knee = find_knee((1, 2, 4), [[100.0], [200.0], [300.0]])
    assert (knee.knee, knee.plateau) == (None, None)
    assert knee.as_text() == "no knee up to level 4: the last doubling gains 50.0%"
    assert find_knee((1,), [[100.0]]).as_text() == "no knee up to level 1"


def test_a_step_of_more_than_a_doubling_is_divided_among_its_doublings() -> None:
    knee = find_knee((1, 4, 64), [[100.0], [121.0], [121.0 * 1.04**4]])
    assert [gain.mean for gain in knee.gains] == pytest.approx([0.1, 0.04])
    assert knee.knee == 4


def test_a_curve_that_falls_says_so() -> None:
    knee = find_knee(LEVELS, [[100.0], [200.0], [180.0], [250.0], [240.0]])
    assert knee.knee == 2  # however it goes on
    assert knee.falls_at == (4, 16)
    assert knee.as_text().endswith("\nnot monotone: throughput falls at level 4, 16")


def test_the_gain_is_taken_run_by_run() -> None:
    # The second round was on a machine of half the speed: the gain is 3 % in each.
    knee = find_knee((8, 16), [[100.0, 50.0, 100.0], [103.0, 51.5, 103.0]])
    assert knee.gains[0].mean == pytest.approx(0.03)
    assert knee.gains[0].low == pytest.approx(0.03)
    assert knee.knee == 8


def test_an_interval_that_allows_more_says_so() -> None:
    knee = find_knee((8, 16), [[100.0, 100.0, 100.0], [100.0, 103.0, 106.0]])
    # mean 3 %, deviation 3 %: 4.3027 x 3 / sqrt(3) = 7.45
    assert knee.gains[0].low == pytest.approx(0.03 - 0.0745, abs=1e-4)
    assert "3.0% [-4.5%, 10.5%], less than 5% (the interval allows more: repeat more often" in knee.as_text()


def test_the_front_holds_whom_nobody_beats() -> None:
    # 2 costs more than 1 and gives less; 4 costs as much as 3 and gives more; the last one has no cost
    assert pareto_front([1.0, 2.0, 3.0, 3.0, None], [10.0, 9.0, 20.0, 25.0, 99.0]) == [0, 3]
    assert pareto_front([5.0, 1.0], [10.0, 10.0]) == [1]
    assert pareto_front([], []) == []


def test_intervals() -> None:
    assert mean_interval([3.0]) == Interval(3.0, None, None)
    mean, low, high = mean_interval([1.0, 2.0, 3.0])  # 2 +- 4.3027 / sqrt(3)
    assert (mean, low, high) == pytest.approx((2.0, 2 - 2.48414, 2 + 2.48414), abs=1e-4)
    assert t_quantile(21) == pytest.approx(2.0796, abs=1e-3)
    assert t_quantile(100) == pytest.approx(1.9840, abs=1e-4)
    assert t_quantile(20) > t_quantile(21) > t_quantile(10_000) > 1.9599
