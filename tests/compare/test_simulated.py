"""The comparison in virtual time: deterministic, and without a model once the cost is known."""

import json
from pathlib import Path

from inflight.compare.machine import read_step_cost

from .conftest import Compared, compare


def test_the_cost_is_fitted_and_its_error_said(simulated: Compared) -> None:
    cost = simulated.results["step_cost"]
    assert simulated.results["simulated"] is True
    assert cost["num_steps"] > 100
    assert cost["relative_error_p50"] <= cost["relative_error_p90"]
    assert "SIMULATED" in simulated.printed
    assert "off by" in simulated.printed
    assert simulated.results["same_output"] is None
    assert all(figures["output_sha256"] is None for figures in simulated.results["families"].values())


def test_the_same_bytes_from_the_same_cost(simulated: Compared, tmp_path: Path) -> None:
    step_cost, workload = simulated.folder / "step_cost.json", simulated.folder / "workload.jsonl"
    flags = f"--simulated-steps --step-cost {step_cost} --trace {workload} --trace-format jsonl --num-seats 4"
    first, second = (compare(tmp_path / name, flags.split()) for name in ("first", "second"))
    assert _but_for_date_and_place(first) == _but_for_date_and_place(second)
    for path in sorted(first.folder.rglob("*")):
        if path.is_file() and path.suffix in (".jsonl", ".svg"):
            assert path.read_bytes() == (second.folder / path.relative_to(first.folder)).read_bytes(), path.name


def test_a_cost_knows_the_machine(simulated: Compared) -> None:
    read = read_step_cost(simulated.folder / "step_cost.json")
    assert (read.machine.num_blocks, read.machine.block_size, read.machine.vocab_size) == (128, 16, 260)
    assert read.machine.max_num_batched_tokens == 64


def test_no_scheduler_time_is_made_up(simulated: Compared) -> None:
    for figures in simulated.results["families"].values():
        assert figures["engine"]["scheduler_s_per_step"] is None
        assert figures["engine"]["pause_s"]["p99"] in (0.0, None)  # virtual time stands still between steps


def _but_for_date_and_place(done: Compared) -> bytes:
    text = (done.folder / "results.json").read_text().replace(str(done.folder), "")
    return json.dumps({key: value for key, value in json.loads(text).items() if key != "date"}).encode()
