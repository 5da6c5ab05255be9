"""Ctrl-C, and several runs of each variant."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inflight.bench.outcome import Outcome
from inflight.cli import main
from inflight.compare import runner
from inflight.compare.run import Run, run_real

from .conftest import compare

SMALL = ["--num-requests=8", "--num-seats=4", "--max-num-batched-tokens=64", "--prompt-tokens=20", "--output-tokens=10"]


def interrupted_in(name: str) -> Callable[..., Run]:
    """``run_real``, and somebody who presses Ctrl-C at the second answer of a variant."""

    def run(*args: Any) -> Run:
        *before, log, _, max_concurrency = args
        num_answers = 0

        def progress(_: Outcome) -> None:
            nonlocal num_answers
            num_answers += 1
            if log.name == f"{name}.jsonl" and num_answers == 2:
                raise KeyboardInterrupt

        return run_real(*before, log, progress, max_concurrency)

    return run


def test_what_is_done_is_kept(
    tmp_path: Path, engine_flags: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "run_real", interrupted_in("dynamic"))
    assert main(["compare", "--out", str(tmp_path), *SMALL, *engine_flags]) == 130
    results = json.loads((tmp_path / "results.json").read_text())
    assert list(results["families"]) == ["static"]
    assert results["interrupted"] is True
    assert "interrupted" in capsys.readouterr().out
    assert (tmp_path / "index.html").is_file()
    assert not (tmp_path / "steps" / "dynamic.jsonl").exists()


@pytest.mark.parametrize("name", ["warm_up", "capacity", "static"])
def test_nothing_is_done_yet(
    tmp_path: Path, engine_flags: list[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(runner, "run_real", interrupted_in(name))
    assert main(["compare", "--out", str(tmp_path), *SMALL, *engine_flags]) == 130
    assert not (tmp_path / "results.json").exists()


def test_the_median_run_is_shown(tmp_path: Path, engine_flags: list[str]) -> None:
    flags = ["--families", "dynamic", "--repeats", "3", *SMALL, "--prompt-tokens", "300", *engine_flags]
    done = compare(tmp_path / "out", flags)
    figures = done.results["families"]["dynamic"]
    durations = [one["duration_s"] for one in figures["runs"]]
    assert durations == sorted(durations)
    assert figures["duration_s"] == durations[1]
    assert figures["step_log"] in [f"steps/dynamic.{number}.jsonl" for number in (1, 2, 3)]
    assert (done.folder / figures["step_log"]).is_file()
    assert done.results["same_output"] is True
    assert "8 of 8 shortened to 256 tokens" in done.results["workload"]["notes"][0]
