"""The tuning table: its verdicts, its sweeps, and the page made from a stored run."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.explain.tuning import ROWS, Trend, judge, spearman
from inflight.runtime.config import RuntimeConfig
from inflight.schedulers.config import StaticConfig
from inflight.schedulers.registry import CONFIGS
from inflight.sim.cost import LinearStepCost
from inflight.workload.item import WorkItem

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "bench"))  # scripts, not a package

import try_it  # noqa: E402
import tuning  # noqa: E402
import tuning_doc  # noqa: E402
import tuning_sweep  # noqa: E402

COST = LinearStepCost(0.003, 0.0005, 2e-7)
STORED = ROOT / "docs" / "tuning.json"
series = st.lists(st.integers(0, 1000).map(float), min_size=3, max_size=9)


def mean_ranks(values: list[float]) -> list[float]:
    ordered = sorted(values)
    return [np.mean([place for place, one in enumerate(ordered) if one == value]) for value in values]


@given(series, st.randoms())
def test_the_correlation_is_pearsons_of_the_mean_ranks(x: list[float], draw) -> None:
    y = [draw.choice(x) for _ in x]
    found = spearman(x, y)
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert found is None
    else:
        assert found == pytest.approx(np.corrcoef(mean_ranks(x), mean_ranks(y))[0, 1])


@pytest.mark.parametrize(
    ("measured", "confirmed", "moving"),
    [
        ([1, 2, 3, 4], True, (0, 3)),
        ([10, 50, 90, 91, 91.5, 90.5], True, (0, 2)),  # a plateau from the third on
        ([0, 0, 0, 0, 5, 17], True, (3, 5)),  # nothing until the fourth
        ([5, 5, 40, 90, 90, 91], True, (1, 3)),  # a plateau at either end
        ([4, 3, 2, 1], False, (0, 3)),
        ([1, 5, 9, 5, 1], False, (0, 4)),
        ([100, 101, 102, 103], False, None),  # it rises, by next to nothing
        ([0, 0, 0], False, None),
    ],
    ids=str,
)
def test_a_trend_holds_or_a_plateau_is_named(measured: list[float], confirmed: bool, moving) -> None:
    verdict = judge(Trend.RISES, measured)
    assert (verdict.confirmed, verdict.moving) == (confirmed, moving)


@given(series)
def test_rising_is_falling_read_backwards_and_never_both(measured: list[float]) -> None:
    rises, falls = judge(Trend.RISES, measured), judge(Trend.FALLS, measured)
    assert not (rises.confirmed and falls.confirmed)
    assert judge(Trend.FALLS, measured[::-1]).confirmed == rises.confirmed
    assert judge(Trend.FALLS, [-value for value in measured]).confirmed == rises.confirmed
    assert (rises.moving is None) == (falls.moving is None)


def test_two_values_are_no_sweep() -> None:
    with pytest.raises(ValueError, match="at least 3"):
        judge(Trend.RISES, [1.0, 2.0])


def test_every_parameter_is_there_with_all_its_cells() -> None:
    assert [row.parameter for row in ROWS] == [
        *("max_num_seqs", "max_num_batched_tokens", "num_gpu_blocks_override", "kv_reserve_blocks", "max_model_len"),
        *("batch_size", "max_batch_size", "max_wait_ms", "length_bins"),
    ]
    for row in ROWS:
        assert all((row.meaning, row.advice, row.smaller.text, row.larger.text))
        assert row.smaller.claims
        assert row.larger.claims
        assert {claim.metric for claim in row.claims} <= tuning_doc.METRICS.keys()
        assert len(row.values) >= 3
        order = [len(value) if isinstance(value, tuple) else value for value in row.values]
        assert order == sorted(set(order))
        owner = RuntimeConfig if row.parameter == "num_gpu_blocks_override" else CONFIGS[row.family]
        assert row.parameter in {one.name for one in dataclasses.fields(owner)}


def test_the_figures_of_a_run_are_those_by_hand() -> None:
    """The batch of two leaves at 2 s, when it is full; steps of 1 s; it comes back at 6 s."""
    items = [WorkItem("short", (1, 2), 2, 0.0), WorkItem("long", (1, 2), 4, 2.0)]
    config = StaticConfig(batch_size=2, max_model_len=32)
    figures = tuning_sweep.run_setting(config, 8, LinearStepCost(1.0, 0.0, 0.0), items)
    assert (figures["total_s"], figures["num_steps"], figures["mean_batch"]) == (6.0, 4, 1.5)
    assert (figures["output_tokens_per_s"], figures["output_tokens_per_busy_s"]) == (1.0, 1.5)
    assert (figures["queue_p50_s"], figures["queue_p99_s"]) == (0.0, 2.0)
    assert (figures["ttft_p50_s"], figures["ttft_p99_s"]) == (4.0, 6.0)
    assert (figures["tpot_p50_s"], figures["tpot_p99_s"]) == (1.0, 1.0)  # as computed: withheld, they come at once
    assert figures["itl_p99_s"] is None
    assert figures["straggler_share"] == 2 / 10  # of two prompts of 2, and 3 steps of two rows
    assert figures["kv_peak"] == 2 / 6  # two of the blocks that are not for pads


def test_every_sweep_gives_every_claim_a_figure_and_the_same_one_again() -> None:
    traffics = {name: tuning_sweep.traffic(name, 10, COST) for name in tuning_sweep.WORKLOADS}
    for row in ROWS:
        results = tuning_sweep.sweep(row, COST, traffics)
        for claim in row.claims:
            figures = results[tuning_sweep.traffic_key(*row.traffic(claim))]
            assert len(figures) == len(row.values)
            assert all(isinstance(one[claim.metric], int | float) for one in figures)
        if row.parameter in ("max_num_seqs", "max_wait_ms"):
            assert tuning_sweep.sweep(row, COST, traffics) == results


def test_the_requests_are_the_same_at_every_load() -> None:
    traffic = tuning_sweep.Traffic("chat", 20, 8.0)
    light, heavy, at_once = (traffic.items(load) for load in (0.1, 2.0, float("inf")))
    shapes = {tuple((one.prompt_token_ids, one.max_tokens) for one in items) for items in (light, heavy, at_once)}
    assert len(shapes) == 1
    assert light[-1].arrival_s == pytest.approx(20 * heavy[-1].arrival_s)
    assert {one.arrival_s for one in at_once} == {0.0}


def test_the_page_is_that_of_the_stored_run() -> None:
    run = json.loads(STORED.read_text())
    stored = {name: tuple(map(str, one["values"])) for name, one in run["rows"].items()}
    assert stored == {row.parameter: tuple(map(str, json.loads(json.dumps(row.values)))) for row in ROWS}
    assert tuning_doc.page(run) == (STORED.parent / "tuning.md").read_text()


def test_a_claim_that_the_sweep_denies_is_said_to_be_denied() -> None:
    run = json.loads(STORED.read_text())
    row = next(row for row in ROWS if row.parameter == "max_num_seqs")
    (key,) = run["rows"][row.parameter]["results"]
    figures = run["rows"][row.parameter]["results"][key]
    for one, rate in zip(figures, (70, 60, 50, 40, 30, 20, 10), strict=True):
        one["output_tokens_per_s"] = rate
    text = tuning_doc.page(run)
    assert f"| 70 | 60 | 50 | 40 | 30 | 20 | 10 | -1.00 | **not confirmed**: {Trend.FALLS} instead |" in text
    assert "fewer tokens/s; memory is safe. **Not confirmed**: output tokens/s with chat" in text


@pytest.mark.parametrize("exercise", list(try_it.EXERCISES))
def test_an_exercise_goes_as_theory_expects(exercise: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert try_it.main([exercise, "--num-requests", "100"]) == 0
    assert "NOT" not in capsys.readouterr().out


def test_an_exercise_that_goes_another_way_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where a step costs nothing but its tokens, batching gains nothing."""
    cost = {"constant_s": 0.0, "per_token_s": 0.001, "per_context_token_s": 0.0}
    (tmp_path / "cost.json").write_text(json.dumps({"cost": cost}))
    argv = ["max_num_seqs", "--num-requests", "20", "--cost", str(tmp_path / "cost.json")]
    assert try_it.main(argv) == 1
    assert "NOT as expected: tokens/s rise" in capsys.readouterr().out


def test_the_page_is_made_again_without_measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["tuning.py", "--from", str(STORED), "--out", str(tmp_path)])
    tuning.main()
    assert (tmp_path / "tuning.md").read_text() == (STORED.parent / "tuning.md").read_text()
    families = {row.family for row in ROWS}
    assert {path.name for path in tmp_path.iterdir()} == {"tuning.md", *(f"tuning_{name}.svg" for name in families)}
