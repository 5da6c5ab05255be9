import json
import logging
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.metrics import report
from inflight.metrics.delta import FirstToken, MetricsDelta, Outcome, RequestRecord
from inflight.metrics.prometheus import PrometheusMetrics
from inflight.metrics.report import Reporter
from inflight.metrics.summary import describe, enough_for, percentile, summarize
from metrics.test_prometheus import stats

RECORD = RequestRecord("cmpl-1", Outcome.STOP, 1, 3, 1, 2, 9, 0.5, 1.0, 1.0, (), None, prompt_token_ids=(104, 105))


def test_one_json_record_per_request_without_content(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "inflight.request"):
        Reporter(PrometheusMetrics())(MetricsDelta(ended=(RECORD, RECORD)), stats())
    lines = [json.loads(entry.getMessage()) for entry in caplog.records if entry.name == "inflight.request"]
    assert len(lines) == 2
    assert lines[0] == {
        "request_id": "cmpl-1",
        "outcome": "stop",
        "num_choices": 1,
        "num_prompt_tokens": 3,
        "num_output_tokens": 1,
        "num_preemptions": 2,
        "num_tokens_lost": 9,
        "queue_s": 0.5,
        "ttft_s": 1.0,
        "computed_ttft_s": None,
        "computed_e2e_s": None,
        "e2e_s": 1.0,
        "tpot_s": [],
        "max_itl_s": None,
        "num_cached_tokens": 0,
        "error": None,
    }


def test_the_prompt_is_logged_on_request(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "inflight.request"):
        Reporter(PrometheusMetrics(), lambda ids: bytes(ids).decode())(MetricsDelta(ended=(RECORD,)), stats())
    assert json.loads(caplog.records[0].getMessage())["prompt"] == "hi"


def test_one_line_per_period(caplog: pytest.LogCaptureFixture) -> None:
    reporter = Reporter(PrometheusMetrics())
    reporter.log_period(0.0)
    delta = MetricsDelta(
        first_tokens=(FirstToken("a", 0.5, 0.25, 1.0),),
        itl_s=(0.03,),
        itl_preempted_s=(0.05,),
        num_prompt_tokens=100,
        num_output_tokens=20,
        num_preemptions=1,
        num_blocks_out=3,
        num_blocks_in=2,
        copies_s=0.0125,
    )
    now = stats(
        live=3,
        num_running_seqs=2,
        num_waiting_seqs=1,
        num_blocks=4,
        num_free_blocks=3,
        num_preemptions=7,
        num_prefix_query_tokens=80,
        num_prefix_hit_tokens=20,
    )
    with caplog.at_level(logging.INFO, "inflight.metrics"):
        reporter(delta, now)
        reporter.log_period(10.0)
        reporter(MetricsDelta(), stats(num_blocks=4, num_free_blocks=4))
        reporter.log_period(20.0)  # nothing happened and nothing runs: no line
    (line,) = [entry.getMessage() for entry in caplog.records]
    assert line == (
        "running: 2, waiting: 1, prompt: 10.0 tokens/s, output: 2.0 tokens/s, KV usage: 25.0 %, "
        "prefix hits: 25.0 % of 80 tokens, preemptions: 1 (total 7), swapped: 3 blocks out, 2 in, 12.5 ms, "
        "TTFT p50 750 ms? p99 750 ms? (n=1), ITL p50 30 ms? p99 50 ms? (n=2)"
    )


def test_what_did_not_happen_is_not_in_the_line(caplog: pytest.LogCaptureFixture) -> None:
    reporter = Reporter(PrometheusMetrics())
    reporter.log_period(0.0)
    reporter(MetricsDelta(num_output_tokens=1), stats(num_blocks=4, num_free_blocks=4, num_prefix_query_tokens=80))
    with caplog.at_level(logging.INFO, "inflight.metrics"):
        reporter.log_period(10.0)
    (line,) = [entry.getMessage() for entry in caplog.records]
    assert line == (
        "running: 0, waiting: 0, prompt: 0.0 tokens/s, output: 0.1 tokens/s, KV usage: 0.0 %, TTFT: none, ITL: none"
    )


def test_a_period_without_an_end_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "MAX_SAMPLES", 3)
    period = report.Period()
    for number in range(10):
        first = FirstToken("a", float(number), 0.0, 1.0)
        period.add(
            MetricsDelta(first_tokens=(first,), itl_s=(0.1, float(number)), num_output_tokens=2, ended=(RECORD,))
        )
    assert list(period.ttft_s) == [7.0, 8.0, 9.0]  # the newest
    assert list(period.itl_s) == [8.0, 0.1, 9.0]
    assert period.num_output_tokens == 20  # sums stay exact


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=300), st.sampled_from((0.5, 0.9, 0.95, 0.99)))
def test_a_percentile_is_the_smallest_sample_that_covers_its_share(samples: list[int], quantile: float) -> None:
    ordered = sorted(samples)
    value = percentile(ordered, quantile)
    assert value in ordered
    share = math.ceil(round(quantile * len(ordered), 6))
    assert sum(sample <= value for sample in ordered) >= share
    assert sum(sample < value for sample in ordered) < share


def test_too_few_samples_are_marked() -> None:
    assert [enough_for(count, 0.5) for count in (199, 200)] == [False, True]
    assert [enough_for(count, 0.99) for count in (9_999, 10_000)] == [False, True]
    assert summarize([]).p50 is None
    assert describe("ITL", []) == "ITL: none"
    assert describe("ITL", [0.001] * 200) == "ITL p50 1 ms p99 1 ms? (n=200)"
