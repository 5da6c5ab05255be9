"""The report for people, word for word."""

import pytest

from bench.outcomes import HAND, outcome
from inflight.bench.run_summary import summarize_run
from inflight.bench.serve_text import serve_text
from inflight.metrics.slo import Slo

ABOUT = {"model_id": "paper", "backend": "openai", "request_rate": 2.0}
OWN = {"num_not_ended": 2, "num_shorter": 1, "workload": ["4 requests", "prompts: random"], "target": ["http://x", "-"]}

EXPECTED = """\
model          paper, openai
target         http://x
workload       4 requests
workload       prompts: random
requests       3 answered, 1 failed (timeout 1), in 4.00 s
throughput     0.75 requests/s, 45 requests/min
               15 input, 2.25 output, 17.25 total tokens/s
for one user   2.286 tokens/s on average, 2.857 median
amortised      444.4 ms/token: duration over output tokens, no latency
fairness       0.766 (Jain) of E2E per output token
goodput        0.25 requests/s, 25.0% of all sent: ttft <= 0.5 s, e2el <= 1.5 s

ms           mean        std        p50        p90        p95        p99    samples
TTFT      583.33     311.80     500.00?    900.00?    950.00?    990.00?          3
TPOT      250.00       0.00     250.00?    250.00?    250.00?    250.00?          2
ITL       250.00     190.94     187.50?    500.00?    500.00?    500.00?          6
E2E     1,250.00     353.55   1,000.00?  1,600.00?  1,675.00?  1,735.00?          3
?: fewer than 100 samples lie beyond it
sent late by   p50 0.00, p99 121.25, max 125.00 ms
warning: the client could not keep up; what it measured is of the client as well
no caller free p50 0.00, p99 485.00, max 500.00 ms after arrival, which is not in TTFT and E2E
note: 1 answers came without a usage: a token for each chunk with text
note: 1 answers are shorter than was asked for
interrupted: 2 requests had not ended, and are not counted"""


def text_of(outcomes, duration_s: float, slo: Slo | None = None, **own) -> str:
    figures = summarize_run(outcomes, duration_s, slo)
    return serve_text({**figures, **ABOUT, "inflight": figures["inflight"] | OWN | own})


def test_all_that_can_be_said() -> None:
    assert text_of(HAND, 4.0, Slo(ttft_s=0.5, e2el_s=1.5)) == EXPECTED


def test_a_run_without_an_answer_shows_dashes() -> None:
    shown = text_of([HAND[3]], 2.0, Slo(ttft_s=1.0), num_not_ended=0, num_shorter=0)
    assert "requests       0 answered, 1 failed (timeout 1), in 2.00 s" in shown
    assert "goodput        0 requests/s, 0.0% of all sent" in shown
    assert shown.splitlines()[-6].split() == ["TTFT", "-", "-", "-", "-", "-", "-", "0"]
    assert "interrupted" not in shown
    assert "amortised" not in shown


@pytest.mark.parametrize(("num_requests", "marked"), [(199, True), (200, False)])
def test_a_median_of_enough_samples_is_not_marked(num_requests: int, marked: bool) -> None:
    many = [outcome(str(index), 0.0, [(0.5, 1), (1.0, 1)], 1.0) for index in range(num_requests)]
    line = next(line for line in text_of(many, 1.0).splitlines() if line.startswith("TTFT"))
    assert (line.count("?") == 4) is marked
    assert line.count("?") >= 3  # p90 needs 1,000 samples
