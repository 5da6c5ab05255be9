"""Lengths are drawn from the distribution that was named, and a name that is none is answered with the forms."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.workload.lengths import Fixed, LogNormal, Mix, Uniform, draw_lengths, parse_lengths

NUM_DRAWS = 20_000


@given(st.integers(1, 10**6), st.integers(0, 10**6), st.integers())
def test_lengths_stay_in_their_range_and_are_the_same_for_a_seed(lowest: int, width: int, seed: int) -> None:
    highest = lowest + width
    for lengths in (Uniform(lowest, highest), LogNormal((lowest + highest) / 2, 3 * highest, lowest, highest)):
        drawn = draw_lengths(lengths, 20, seed)
        assert all(lowest <= length <= highest for length in drawn)
        assert drawn == draw_lengths(lengths, 20, seed)
    assert draw_lengths(Fixed(lowest), 3, seed) == [lowest] * 3


def test_uniform_takes_each_length_alike() -> None:
    drawn = Counter(draw_lengths(Uniform(3, 6), NUM_DRAWS))
    assert set(drawn) == {3, 4, 5, 6}
    assert all(number == pytest.approx(NUM_DRAWS / 4, rel=0.05) for number in drawn.values())


def test_a_lognormal_has_its_median_and_its_p99() -> None:
    drawn = sorted(draw_lengths(LogNormal(120, 900, 1, 10**6), NUM_DRAWS))
    assert drawn[NUM_DRAWS // 2] == pytest.approx(120, rel=0.05)
    assert drawn[NUM_DRAWS * 99 // 100] == pytest.approx(900, rel=0.1)
    clamped = draw_lengths(LogNormal(120, 900, 100, 200), NUM_DRAWS)
    assert {min(clamped), max(clamped)} == {100, 200}


def test_a_tail_beyond_all_numbers_ends_at_the_longest() -> None:
    drawn = draw_lengths(parse_lengths("lognormal:1,1e308,1,10"), NUM_DRAWS)
    assert (drawn.count(1) + drawn.count(10)) / NUM_DRAWS > 0.95
    assert {min(drawn), max(drawn)} == {1, 10}


def test_a_mix_has_its_shares() -> None:
    drawn = draw_lengths(Mix(((9, Fixed(5)), (1, Uniform(100, 200)))), NUM_DRAWS)
    assert sum(length == 5 for length in drawn) == pytest.approx(0.9 * NUM_DRAWS, rel=0.02)
    assert all(length == 5 or 100 <= length <= 200 for length in drawn)


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("200", Fixed(200)),
        ("uniform:16,768", Uniform(16, 768)),
        ("lognormal:120,900.5,16,768", LogNormal(120, 900.5, 16, 768)),
        ("0.9x64+0.1xuniform:500,900", Mix(((0.9, Fixed(64)), (0.1, Uniform(500, 900))))),
    ],
)
def test_the_forms_of_a_flag(text: str, lengths: object) -> None:
    assert parse_lengths(text) == lengths


@pytest.mark.parametrize(
    "text",
    [
        "", "0", "-3", "1.5", ":5", "many", "uniform:3", "uniform:9,3", "lognormal:5,3,1,9", "lognormal:50,60,1,9",
        "normal:1,2", "0.5x3+", "0x3+1x4", "3+4", "infx3+1x4", "nanx3+1x4", "lognormal:nan,nan,1,9",
        "lognormal:5,inf,1,9", "2147483648", f"lognormal:5,6,1,{10**400}",
    ],
)  # fmt: skip
def test_what_is_no_distribution_is_answered_with_the_forms(text: str) -> None:
    with pytest.raises(ValueError, match="lengths are N, uniform:"):
        parse_lengths(text)
