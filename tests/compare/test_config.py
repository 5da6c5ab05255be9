import math
from pathlib import Path

import msgspec
import pytest

from inflight.cli import main
from inflight.compare.config import CompareConfig, read_workload_config
from inflight.compare.machine import read_step_cost, write_step_cost

from .test_stamps import COST


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"families": "static,dinamic"}, "'dinamic' is not known; there are: static, dynamic, continuous"),
        ({"families": " , "}, "names none"),
        ({"num_seats": 0}, "num_seats"),
        ({"repeats": 0}, "repeats"),
        ({"load": 0.0}, "load"),
        ({"load": math.nan}, "load"),
        ({"step_cost": Path("x")}, "simulated-steps"),
        ({"simulated_steps": True, "repeats": 2}, "repeats must be 1"),
    ],
)
def test_wrong_settings_are_named(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CompareConfig(**values)  # type: ignore[arg-type]


def test_without_anything_a_mix_is_drawn_at_a_load() -> None:
    workload, load = read_workload_config(CompareConfig(), {})
    assert load == 0.8
    assert workload.request_rate == math.inf  # until the capacity is known
    assert workload.output_tokens is not None
    assert workload.output_tokens.startswith("0.9x")


def test_a_rate_or_a_trace_says_when_requests_arrive() -> None:
    assert read_workload_config(CompareConfig(), {"request_rate": 2.0})[1] is None
    workload, load = read_workload_config(CompareConfig(), {"trace": Path("trace.csv")})
    assert (workload.request_rate, load) == (None, None)
    assert workload.output_tokens is None
    with pytest.raises(ValueError, match="exclude each other"):
        read_workload_config(CompareConfig(load=0.5), {"request_rate": 2.0})


def test_an_empty_trace(tmp_path: Path, engine_flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    trace, out = tmp_path / "empty.jsonl", tmp_path / "out"
    trace.write_text("")
    assert main(["compare", "--trace", str(trace), "--out", str(out), *engine_flags]) == 2
    assert "holds no requests" in capsys.readouterr().err
    assert main(["compare", "--trace", str(tmp_path / "none"), "--out", str(out), *engine_flags]) == 1


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    assert main(["compare", "--out", str(tmp_path)]) == 2
    assert "--force" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_cost_of_steps_excludes_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cost = tmp_path / "step_cost.json"
    cost.write_text("{}")
    flags = ["compare", "--out", str(tmp_path / "out"), "--simulated-steps", "--step-cost", str(cost)]
    assert main([*flags, "--block-size", "8"]) == 2
    assert "--block-size" in capsys.readouterr().err
    assert main(flags) == 2
    assert "is no step cost" in capsys.readouterr().err


@pytest.mark.parametrize(
    "fact",
    ["vocab_size", "max_position_embeddings", "num_blocks", "block_size", "bytes_per_block", "max_num_batched_tokens"],
)
@pytest.mark.parametrize("value", [0, -1])
def test_a_cost_of_steps_of_an_impossible_machine_is_refused(tmp_path: Path, fact: str, value: int) -> None:
    path = tmp_path / "step_cost.json"
    write_step_cost(path, COST)
    assert read_step_cost(path) == COST
    broken = msgspec.structs.replace(COST.machine, **{fact: value})
    write_step_cost(path, msgspec.structs.replace(COST, machine=broken))
    with pytest.raises(ValueError, match=f"is no step cost.*{fact}"):
        read_step_cost(path)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--arrival", "replay"], "replay"),
        (["--max-wait-ms", "-1"], "max_wait_ms"),
        (["--request-rate", "1", "--load", "0.5"], "load"),
        (["--step-cost", "{}/none.json", "--simulated-steps"], "none.json"),
        (["--trace", "{}/none.csv", "--step-cost", "{}/cost.json", "--simulated-steps"], "none.csv"),
    ],
)
def test_an_earlier_comparison_stays_until_all_is_known_to_be_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], named: str
) -> None:
    earlier = tmp_path / "out" / "results.json"
    earlier.parent.mkdir()
    earlier.write_text("hours of work")
    write_step_cost(tmp_path / "cost.json", COST)
    flags = [flag.format(tmp_path) for flag in flags]
    assert main(["compare", "--force", "--out", str(earlier.parent), *flags]) in (1, 2)
    assert named in capsys.readouterr().err
    assert earlier.read_text() == "hours of work"
