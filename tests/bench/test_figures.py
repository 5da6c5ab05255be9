"""The figures of a run, from times that were made up."""

from dataclasses import replace

import pytest

from inflight.bench.figures import Answer, Usage, figures, medians
from inflight.workload.item import WorkItem

WORK = [WorkItem("a", (1,) * 30, 3), WorkItem("b", (2,) * 10, 2)]
ANSWERS = [
    Answer(100.0, [101.0, 103.0, 106.0], ["x", "", "yz"], [5, 6, 7]),
    Answer(100.5, [102.0, 104.0], ["p", "q"], [8, 9]),
]
USAGE = Usage(num_steps=4, num_step_tokens=44, engine_cpu_s=7.0, engine_peak_bytes=5000, forward_s=9.0, kv_bytes=2000)


def test_a_run_by_hand() -> None:
    run = figures(WORK, ANSWERS, 100.0, 110.0, USAGE)
    assert (run.wall_s, run.num_prompt_tokens, run.num_output_tokens) == (10.0, 40, 5)
    assert (run.output_tokens_per_s, run.all_tokens_per_s) == (0.5, 4.5)
    assert (run.ttft_mean_s, run.ttft_p50_s, run.ttft_p99_s) == pytest.approx((1.25, 1.25, 1.495))
    assert (run.itl_mean_s, run.itl_p50_s) == pytest.approx((7 / 3, 2.0))
    # Both have begun at 102: 40 prompt tokens in 2 s, and then three tokens in 8 s.
    assert (run.prefill_tokens_per_s, run.decode_tokens_per_s) == (20.0, 3 / 8)
    assert (run.num_steps, run.mean_step_tokens) == (4, 11.0)
    assert run.python_share == pytest.approx(0.1)
    assert (run.kv_bytes, run.engine_peak_less_kv_bytes) == (2000, 3000)


def test_hashes_are_of_all_outputs_in_order() -> None:
    run = figures(WORK, ANSWERS, 100.0, 110.0, USAGE)
    other_times = [replace(answer, arrivals_s=[at + 1 for at in answer.arrivals_s]) for answer in ANSWERS]
    same = figures(WORK, other_times, 100.0, 110.0, USAGE)
    assert (same.output_sha256, same.text_sha256) == (run.output_sha256, run.text_sha256)
    moved = [replace(ANSWERS[0], token_ids=[5, 6]), replace(ANSWERS[1], token_ids=[7, 8, 9])]
    assert figures(WORK, moved, 100.0, 110.0, USAGE).output_sha256 != run.output_sha256
    moved = [replace(ANSWERS[0], texts=["xy"]), replace(ANSWERS[1], texts=["zpq"])]
    assert figures(WORK, moved, 100.0, 110.0, USAGE).text_sha256 != run.text_sha256
    untold = [replace(ANSWERS[0], token_ids=None), ANSWERS[1]]
    assert figures(WORK, untold, 100.0, 110.0, USAGE).output_sha256 is None


def test_medians_say_where_outputs_differ() -> None:
    runs = [figures(WORK, ANSWERS, 100.0, end_s, USAGE) for end_s in (110.0, 120.0, 112.0)]
    assert medians(runs).wall_s == 12.0
    assert medians(runs).output_sha256 == runs[0].output_sha256
    assert medians(runs).api_cpu_s is None
    assert medians([*runs, replace(runs[0], text_sha256="another")]).text_sha256 == "differs"
