"""The figures of a run of four requests, each computed by hand; see ``outcomes.HAND``."""

import math

import pytest

from bench.outcomes import HAND, failure, outcome
from inflight.bench.outcome import ErrorKind
from inflight.bench.run_summary import details, jain_index, summarize_run
from inflight.metrics.slo import Slo

FIGURES = summarize_run(HAND, 4.0, Slo(ttft_s=0.5, e2el_s=1.5))


def test_counts_and_rates() -> None:
    assert {name: FIGURES[name] for name in ("completed", "failed", "duration")} == {
        "completed": 3,
        "failed": 1,
        "duration": 4.0,
    }
    assert FIGURES["total_input_tokens"] == 10 + 20 + 30
    assert FIGURES["total_output_tokens"] == 5 + 3 + 1
    assert FIGURES["request_throughput"] == 3 / 4
    assert FIGURES["output_throughput"] == 9 / 4
    assert FIGURES["total_token_throughput"] == 69 / 4
    own = FIGURES["inflight"]
    assert own["input_throughput"] == 60 / 4
    assert own["requests_per_minute"] == 45
    assert own["amortised_ms_per_token"] == pytest.approx(4000 / 9)
    # 5 tokens in 1.75 s, 3 in 1 s, 1 in 1 s
    assert own["user_tokens_per_s"] == {"mean": pytest.approx((5 / 1.75 + 3 + 1) / 3), "median": 5 / 1.75}
    assert own["errors_by_kind"] == {"timeout": 1}
    assert own["num_counted_by_chunks"] == 1


def test_latencies_in_ms() -> None:
    # TTFT 500, 250, 1000 ms
    assert FIGURES["mean_ttft_ms"] == pytest.approx(1750 / 3)
    assert FIGURES["median_ttft_ms"] == FIGURES["p50_ttft_ms"] == 500
    assert FIGURES["std_ttft_ms"] == pytest.approx(math.sqrt((250**2 + 1000**2 + 500**2) / 3 - (1750 / 3) ** 2))
    assert FIGURES["p90_ttft_ms"] == pytest.approx(500 + 0.8 * 500)  # interpolated, as vLLM does
    assert FIGURES["p99_ttft_ms"] == pytest.approx(500 + 0.98 * 500)
    # TPOT 250, 250 ms: the request of one token has none
    assert FIGURES["mean_tpot_ms"] == FIGURES["p99_tpot_ms"] == 250
    # ITL 250, 500, 125, 125, 0, 500 ms
    assert FIGURES["mean_itl_ms"] == 250
    assert FIGURES["median_itl_ms"] == (125 + 250) / 2
    # E2E 1750, 1000, 1000 ms
    assert FIGURES["mean_e2el_ms"] == 1250
    assert FIGURES["inflight"]["num_samples"] == {"ttft": 3, "tpot": 2, "itl": 6, "e2el": 3}
    assert len(FIGURES["inflight"]["too_few_samples"]) == 16


def test_goodput_counts_failures_as_missed() -> None:
    # a keeps its TTFT but not its E2E, b keeps both, c and d keep neither
    assert FIGURES["request_goodput"] == 1 / 4
    assert (FIGURES["inflight"]["num_good"], FIGURES["inflight"]["good_share"]) == (1, 1 / 4)
    assert summarize_run(HAND, 4.0)["request_goodput"] is None


def test_lag_is_from_due_to_sent_and_the_queue_from_scheduled_to_due() -> None:
    own = FIGURES["inflight"]
    assert own["send_lag_ms"] == {"p50": 0, "p99": pytest.approx(0.97 * 125), "max": 125}
    assert own["client_queue_ms"]["max"] == 500


def test_peaks() -> None:
    # tokens from 0 s on: a 2 in the first second; a 3, b 3 in the next one; c 1
    assert FIGURES["max_output_tokens_per_s"] == 6
    assert FIGURES["max_concurrent_requests"] == 3  # all three from 1.125 s to 1.75 s
    back_to_back = [outcome("x", 0.0, [(1.0, 1)], 1.0), outcome("y", 1.0, [(2.0, 1)], 2.0)]
    assert summarize_run(back_to_back, 2.0)["max_concurrent_requests"] == 1


def test_details_are_a_list_for_each_request() -> None:
    lists = details(HAND)
    assert lists["input_lens"] == [10, 20, 30, 10]
    assert lists["output_lens"] == [5, 3, 1, 0]
    assert lists["ttfts"] == [0.5, 0.25, 1.0, None]
    assert lists["itls"][:2] == [[0.25, 0.5, 0.125, 0.125], [0.0, 0.5]]
    assert lists["queue_times"] == [0, 0, 0.625, 0]
    assert lists["generated_texts"] == ["abcde", "fgh", "i", ""]
    assert lists["errors"] == ["", "", "", "timeout: as written"]


@pytest.mark.parametrize("outcomes", [[], [failure("x", 0.0, 0.0, ErrorKind.CONNECTION)]], ids=["none", "all failed"])
def test_what_is_not_defined_is_none(outcomes) -> None:
    figures = summarize_run(outcomes, 0.0, Slo(ttft_s=1.0))
    for name in ("mean_ttft_ms", "p99_itl_ms", "request_throughput", "output_throughput", "request_goodput"):
        assert figures[name] is None
    assert figures["inflight"]["amortised_ms_per_token"] is None
    assert figures["inflight"]["jain_index_of_e2e_per_output_token"] is None
    assert figures["completed"] == 0


def test_jain_index() -> None:
    assert jain_index([3.0, 3.0, 3.0]) == pytest.approx(1.0)
    assert jain_index([1.0, 0.0, 0.0, 0.0]) == 0.25
    assert jain_index([1.0, 2.0]) == pytest.approx(9 / 10)


def test_the_keys_are_those_of_vllm() -> None:
    statistics = ("mean", "median", "std", "p50", "p90", "p95", "p99")
    assert FIGURES.keys() == {
        "duration", "completed", "failed", "total_input_tokens", "total_output_tokens", "request_throughput",
        "request_goodput", "output_throughput", "total_token_throughput", "max_output_tokens_per_s",
        "max_concurrent_requests", "inflight",
        *(f"{one}_{metric}_ms" for one in statistics for metric in ("ttft", "tpot", "itl", "e2el")),
    }  # fmt: skip
    assert details(HAND).keys() == {
        "input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "queue_times", "generated_texts",
        "errors",
    }  # fmt: skip
