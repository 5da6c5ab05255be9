"""A curve's levels from runs that are written down, and its text word for word."""

import pytest

from bench.outcomes import failure, outcome
from inflight.bench.curve_report import curve_report, curve_text
from inflight.bench.outcome import Outcome
from inflight.core.errors import InflightError
from inflight.metrics.slo import Slo


def run(num_callers: int, ttft_s: float, num_tokens: int, tpot_s: float) -> list[Outcome]:
    """All callers at once, each with the same answer."""
    end_s = ttft_s + (num_tokens - 1) * tpot_s
    arrivals = [(ttft_s + index * tpot_s, 1) for index in range(num_tokens)]
    return [outcome(str(caller), 0.0, arrivals, end_s) for caller in range(num_callers)]


RUNS = {
    1: [run(1, 0.5, 5, 0.125), run(1, 0.5, 5, 0.125)],  # 5 tokens in 1 s
    2: [run(2, 0.5, 5, 0.125), run(2, 0.75, 5, 0.0625)],  # 10 tokens in 1 s
    4: [run(4, 1.0, 5, 0.25), run(4, 1.0, 5, 0.25)],  # 20 tokens in 2 s
}
ABOUT = {"model_id": "paper", "backend": "in-process", "target": ["an engine"], "workload": ["5 tokens"]}


def test_levels_and_what_follows_from_them() -> None:
    report = curve_report(RUNS, Slo(ttft_s=0.75))
    assert [row["output_throughput"] for row in report["levels"]] == [5.0, 10.0, 10.0]
    assert [row["output_throughputs"] for row in report["levels"]] == [[5.0, 5.0], [10.0, 10.0], [10.0, 10.0]]
    assert [(row["num_runs"], row["completed"], row["failed"]) for row in report["levels"]] == [
        (2, 2, 0),
        (2, 4, 0),
        (2, 8, 0),
    ]
    assert [row["p50_ttft_ms"] for row in report["levels"]] == [500.0, 625.0, 1000.0]  # of both runs together
    assert [row["p50_tpot_ms"] for row in report["levels"]] == [125.0, 93.75, 250.0]
    assert [row["good_share"] for row in report["levels"]] == [1.0, 1.0, 0.0]
    assert (report["knee"], report["plateau"], report["falls_at"], report["slo_level"]) == (2, 10.0, [], 2)
    assert report["front_p50_tpot"] == [2]  # 1 has less throughput at a longer TPOT, 4 no more at a longer one
    assert report["front_p99_ttft"] == [1, 2]


EXPECTED = """\
model     paper, in-process
target    an engine
workload  5 tokens

level  tokens/s       95 % interval  requests/s    TTFT p50     p99 ms   TPOT p50     p99 ms  failed
    1       5.0          5.0 to 5.0        1.00      500.0?     500.0?     125.0?     125.0?       0
    2      10.0        10.0 to 10.0        2.00      625.0?     750.0?      93.8?     125.0?       0
    4      10.0        10.0 to 10.0        2.00    1,000.0?   1,000.0?     250.0?     250.0?       0
?: fewer than 100 samples lie beyond it

knee at level 2: doubling it gains 0.0% [0.0%, 0.0%], less than 5%; the plateau is 10 tokens/s
level 2 is the highest that keeps ttft <= 0.75 s for 99% of its requests
best trades of throughput and TPOT p50: levels 2
best trades of throughput and TTFT p99: levels 1, 2"""


def test_the_text() -> None:
    assert curve_text(curve_report(RUNS, Slo(ttft_s=0.75)) | ABOUT) == EXPECTED


def test_an_objective_that_no_level_keeps() -> None:
    shown = curve_text(curve_report({1: [run(1, 1.0, 1, 0.0)]}, Slo(ttft_s=0.5)) | ABOUT)
    assert "no level keeps ttft <= 0.5 s for 99% of its requests" in shown
    assert "no knee up to level 1" in shown
    assert "-" in shown.splitlines()[5]  # one run has no interval, one token no TPOT


def test_a_level_without_an_answer_is_named() -> None:
    with pytest.raises(InflightError, match="level 8: no request was answered: as written"):
        curve_report({1: [run(1, 1.0, 1, 0.0)], 8: [[failure("x", 0.0, 1.0)]]}, None)
