import math
from pathlib import Path

import pytest

from inflight.cli import main
from inflight.compare.config import CompareConfig, read_workload_config, variants


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
        ({"max_wait_ms": -1.0}, "max_wait_ms"),
        ({"num_seats": 8, "max_num_batched_tokens": 4}, "max_num_batched_tokens"),
    ],
)
def test_wrong_settings_are_named(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CompareConfig(**values)  # type: ignore[arg-type]


def test_all_families_have_the_same_seats_and_the_asked_order() -> None:
    config = CompareConfig(families="continuous, static", num_seats=5, with_no_padding=True, with_contiguous=True)
    chosen = variants(config)
    assert [one.name for one in chosen] == [
        *("static", "static_ragged", "continuous", "continuous_unchunked", "continuous_contiguous")
    ]
    assert {one.scheduler.num_seats for one in chosen} == {5}
    assert len({one.title for one in chosen}) == len(chosen)


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
