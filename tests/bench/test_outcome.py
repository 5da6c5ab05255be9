"""The latencies of one request, against numbers computed by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.outcomes import HAND, failure, outcome
from inflight.bench.outcome import run_duration_s
from inflight.metrics.slo import Slo

A, B, C, FAILED = HAND


def test_one_sample_for_each_gap_and_tokens_of_a_chunk_share_it() -> None:
    assert (A.ttft_s, A.tpot_s, A.e2el_s, A.num_output_tokens) == (0.5, 0.25, 1.75, 5)
    assert A.itl_s == [0.25, 0.5, 0.125, 0.125]


def test_what_comes_with_the_first_token_came_at_once() -> None:
    assert (B.ttft_s, B.tpot_s, B.e2el_s, B.num_output_tokens) == (0.25, 0.25, 1.0, 3)
    assert B.itl_s == [0.0, 0.5]


def test_one_token_has_no_tpot_and_none_has_no_ttft() -> None:
    assert (C.ttft_s, C.tpot_s, C.itl_s) == (1.0, None, [])
    assert (FAILED.ttft_s, FAILED.tpot_s, FAILED.itl_s) == (None, None, [])


@given(
    st.lists(st.tuples(st.floats(0, 100), st.integers(1, 5)), min_size=1, max_size=20).map(sorted),
)
def test_the_gaps_add_up_to_the_time_from_first_to_last_token(arrivals: list[tuple[float, int]]) -> None:
    one = outcome("x", 0.0, arrivals, 200.0)
    assert len(one.itl_s) == one.num_output_tokens - 1
    assert sum(one.itl_s) == pytest.approx(arrivals[-1][0] - arrivals[0][0])
    if one.tpot_s is not None:
        assert sum(one.itl_s) == pytest.approx(one.tpot_s * (one.num_output_tokens - 1))


def test_a_run_lasts_from_the_first_that_was_due_to_the_last_end() -> None:
    assert run_duration_s(HAND) == 4.0
    assert run_duration_s(HAND[1:3]) == 1.125
    assert run_duration_s([]) == 0.0


@pytest.mark.parametrize(
    ("pairs", "kept"),
    [
        (["ttft:0.5"], [True, True, False, False]),
        (["ttft:0.49"], [False, True, False, False]),
        (["tpot:0.25"], [True, True, True, False]),  # one token has none to miss
        (["tpot:0.2"], [False, False, True, False]),
        (["e2el:1", "ttft:1"], [False, True, True, False]),
    ],
    ids=str,
)
def test_an_objective_is_kept_up_to_its_bound_and_never_by_a_failure(pairs: list[str], kept: list[bool]) -> None:
    slo = Slo.parse(pairs)
    assert slo is not None
    assert [slo.met_by(one) for one in HAND] == kept


def test_objectives_are_read_and_told() -> None:
    slo = Slo.parse(["e2el:5", "ttft:0.5", "tpot:1e-1"])
    assert slo == Slo(ttft_s=0.5, tpot_s=0.1, e2el_s=5.0)
    assert str(slo) == "ttft <= 0.5 s, tpot <= 0.1 s, e2el <= 5 s"
    assert Slo.parse([]) is None


@pytest.mark.parametrize(
    ("pairs", "named"),
    [
        (["itl:1"], "itl:1"),
        (["e2e:1"], "e2e:1"),
        (["ttft"], "ttft"),
        (["ttft:soon"], "soon"),
        (["ttft:0"], "above 0"),
        (["ttft:nan"], "nan"),
        (["ttft:inf"], "inf"),
        (["ttft:1", "ttft:2"], "twice"),
    ],
    ids=str,
)
def test_an_objective_that_is_none_is_named(pairs: list[str], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Slo.parse(pairs)


def test_tokens_of_a_failed_request_are_told_too() -> None:
    assert failure("x", 0.0, 1.0).num_output_tokens == 0
