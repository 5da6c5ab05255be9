"""``inflight explain`` as a user runs it."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from explain.logs import LogWriter, static_log
from explain.test_timeline import A
from inflight.cli import main
from inflight.engine.recorder import Started, read_step_log
from inflight.metrics.ledger import Ledger


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return static_log(tmp_path / "steps.jsonl", {"ann": (4, 3), "bob": (2, 6), "eve": (6, 1)}, 3)


def test_the_picture_and_the_ledger_are_printed(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(log)]) == 0
    out = capsys.readouterr().out
    assert "seat 1 │▒▄▄▄▄▄│" in out
    assert "straggler                        8    24.2 %" in out
    assert "queue: nobody waited" in out


def test_rows_columns_width_and_steps(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--rows", "requests", "--columns", "time", "--width", "48", "--first-step", "1", "--num-steps", "2"]
    assert main(["explain", str(log), *flags]) == 0
    out = capsys.readouterr().out
    assert "2 steps, 0.020 s" in out.replace("\n", " ")
    assert f"bob 2+6 │{'▄' * 38}│" in out
    assert "seats x steps                      6" in out


def test_every_picture_is_written(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = {flag: tmp_path / f"out{flag}" for flag in ("--html", "--svg", "--chrome-trace", "--kv-layout")}
    assert main(["explain", str(log), *(str(word) for pair in names.items() for word in pair), "--step", "2"]) == 0
    out = capsys.readouterr().out
    assert "│" not in out
    assert all(f"written: {path}" in out for path in names.values())
    assert "straggler                        8    24.2 %" in out
    assert names["--html"].read_text().startswith("<!doctype html>")
    ET.fromstring(names["--svg"].read_text())
    assert "after step 2" in names["--kv-layout"].read_text()
    assert json.loads(names["--chrome-trace"].read_bytes())["traceEvents"]


@pytest.mark.parametrize(
    ("flags", "exit_code", "named"),
    [
        (["--width", "10"], 2, "width must be at least 40"),
        (["--num-steps", "0"], 2, "num_steps must be at least 1"),
        (["--first-step", "-1"], 2, "first_step must be at least 0"),
        (["--step", "1"], 2, "--kv-layout"),
        (["--first-step", "9"], 2, "the log holds steps 0 to 5"),
        (["--kv-layout", "OUT", "--step", "77"], 2, "no step 77"),
        (["--svg", "/nowhere/out.svg"], 1, "/nowhere/out.svg"),
    ],
    ids=str,
)
def test_what_cannot_be_drawn(
    log: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    exit_code: int,
    named: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["explain", str(log), *flags]) == exit_code
    error = capsys.readouterr().err
    assert error.startswith("inflight: ")
    assert error.count("\n") == 1
    assert named in error
    assert not (tmp_path / "OUT").exists()


@pytest.mark.parametrize("flags", [["--svg", "LOG"], ["--html", "twice", "--svg", "./twice"]], ids=str)
def test_nothing_is_overwritten(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    before = log.read_bytes()
    assert main(["explain", str(log), *(str(log) if flag == "LOG" else flag for flag in flags)]) == 2
    assert "would be overwritten" in capsys.readouterr().err
    assert log.read_bytes() == before


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"block_size": 0}, "of 0 tokens cannot be"),
        ({"num_blocks": -1}, "-1 blocks"),
        ({"num_blocks": 10**17}, "cannot be"),
        ({"version": 2}, "version 2"),
    ],
    ids=str,
)
def test_a_start_line_that_cannot_be(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: dict[str, int], named: str
) -> None:
    first, _, rest = log.read_bytes().partition(b"\n")
    log.write_bytes(json.dumps(json.loads(first) | damage).encode() + b"\n" + rest)
    assert main(["explain", str(log), "--kv-layout", str(tmp_path / "kv.svg")]) == 2
    error = capsys.readouterr().err
    assert str(log) in error
    assert named in error


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "/nowhere/steps.jsonl"]) == 1
    assert capsys.readouterr().err == (
        "inflight: the step log /nowhere/steps.jsonl cannot be read: No such file or directory\n"
    )


def test_logs_without_a_step_and_of_several_engines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "steps.jsonl"
    LogWriter(path, "continuous", 2).close()
    assert main(["explain", str(path)]) == 0
    assert "no step that ended" in capsys.readouterr().out
    log = LogWriter(path, "continuous", 2)
    log.add("a", 2)
    log.step([(A, 0, 2)], ended=(A,))
    log.close()
    assert main(["explain", str(path)]) == 0
    assert "2 engines wrote into this log" in capsys.readouterr().out.replace("\n", " ")


def test_the_builder_of_these_logs_writes_what_engines_write(log: Path) -> None:
    """The ledger takes every step of it, and no row-slot is lost."""
    started, *lines = read_step_log(log)
    assert isinstance(started, Started)
    ledger, outputs = Ledger(3), [line.output for line in lines if hasattr(line, "output")]
    for output in outputs:
        ledger.on_update(output, False, ())
    assert ledger.slots.num_computed_tokens == sum(output.num_computed_tokens for output in outputs) == 33
