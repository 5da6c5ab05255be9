"""`inflight bench engine` with the real model: the counts are right, and over HTTP the output is the same."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from inflight.bench.over_http import as_flags
from inflight.cli import main
from inflight.hub.resolve import ModelFiles

FLAGS = ["--num-threads", "1", "--max-num-batched-tokens", "48", "--num-gpu-blocks-override", "64"]
PROMPTS = ([504, 2365, 282, 4649, 314], [1, 4093, 198], list(range(1000, 1070)))
NEW = (5, 7, 4)


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file: Path = tmp_path_factory.mktemp("bench") / "work.jsonl"
    lines = [
        {"id": index, "prompt_token_ids": prompt, "max_tokens": new}
        for index, (prompt, new) in enumerate(zip(PROMPTS, NEW, strict=True))
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def bench(folder: Path, *argv: str) -> dict[str, Any]:
    out = folder / "report.json"
    assert main(["bench", "engine", *argv, *FLAGS, "--repeats", "2", "--json", str(out)]) == 0
    report: dict[str, Any] = json.loads(out.read_bytes())
    return report


def check_counts(report: Mapping[str, Any]) -> None:
    assert report["workload"] == {"num_requests": 3, "num_prompt_tokens": 78, "num_output_tokens": 16}
    for run in report["runs"]:
        assert (run["num_prompt_tokens"], run["num_output_tokens"]) == (78, 16)
        # Each token but the last one of a request is run once: nothing was preempted.
        assert run["num_steps"] * run["mean_step_tokens"] == pytest.approx(78 + 16 - 3)
        assert 0 < run["ttft_p50_s"] <= run["ttft_p99_s"] < run["wall_s"]
        assert run["output_tokens_per_s"] == pytest.approx(16 / run["wall_s"])
    assert report["median"].keys() == report["runs"][0].keys()
    assert report["settings"]["engine"]["scheduler"]["max_num_batched_tokens"] == 48
    assert report["settings"]["engine"]["scheduler"]["max_num_waiting_seqs"] is None
    assert {"inflight", "torch", "python", "cpu", "kernels"} <= set(report["versions"])


@pytest.fixture(scope="module")
def offline(workload: Path, tmp_path_factory: pytest.TempPathFactory, model_files: ModelFiles) -> dict[str, Any]:
    return bench(tmp_path_factory.mktemp("offline"), "--workload", str(workload))


def test_offline(offline: dict[str, Any]) -> None:
    check_counts(offline)
    assert len(offline["runs"]) == 2
    for run in offline["runs"]:
        assert run["python_share"] is None or 0 < run["python_share"] < 1  # None where torch runs the pass
        # Prompt and output of each, in blocks of 16 tokens; the last token of an output is never stored.
        assert run["kv_bytes"] == (1 + 1 + 5) * offline["engine"]["bytes_per_block"]
    assert len(offline["median"]["output_sha256"]) == 64


def test_over_http_the_output_is_the_same(workload: Path, tmp_path: Path, offline: dict[str, Any]) -> None:
    report = bench(tmp_path, "--workload", str(workload), "--http")
    check_counts(report)
    assert report["median"]["text_sha256"] == offline["median"]["text_sha256"]
    assert report["median"]["client_cpu_s"] > 0
    assert report["median"]["engine_cpu_s"] > 0


def test_one_caller_gets_the_same_output_in_more_steps(workload: Path, tmp_path: Path, offline: dict[str, Any]) -> None:
    report = bench(tmp_path, "--workload", str(workload), "--num-callers", "1")
    check_counts(report)
    assert report["median"]["output_sha256"] == offline["median"]["output_sha256"]
    # 1 + 1 + 2 steps for the prompts, and one for each later token.
    assert report["median"]["num_steps"] == 4 + 16 - 3


def test_drawn_prompts(tmp_path: Path, model_files: ModelFiles, capsys: pytest.CaptureFixture[str]) -> None:
    report = bench(tmp_path, "--num-prompts", "2", "--prompt-tokens", "9", "--output-tokens", "3")
    assert report["workload"] == {"num_requests": 2, "num_prompt_tokens": 18, "num_output_tokens": 6}
    assert report["median"]["decode_tokens_per_s"] > 0
    shown = capsys.readouterr().out
    assert report["median"]["output_sha256"] in shown
    assert "prompt tokens/s" in shown


@pytest.mark.parametrize("http", [[], ["--http"]], ids=["offline", "http"])
def test_a_prompt_that_is_too_long_is_named_before_anything_runs(
    workload: Path, http: list[str], model_files: ModelFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "engine", "--workload", str(workload), "--max-model-len", "60", *FLAGS, *http]) == 2
    error = capsys.readouterr().err
    assert "request 2" in error
    assert "60" in error
    assert "warm-up" not in error


@pytest.mark.parametrize(
    ("argv", "exit_code", "named"),
    [
        (["--workload", "/nowhere.jsonl"], 1, "/nowhere.jsonl"),
        (["--repeats", "0"], 2, "repeats"),
        (["--num-callers", "0"], 2, "num_callers"),
        (["--workload", "x.jsonl", "--num-prompts", "3"], 2, "--workload"),
        (["--model", "/nowhere/model.gguf", "--http"], 1, "/nowhere/model.gguf"),
    ],
    ids=str,
)
def test_wrong_usage_is_one_line(
    argv: list[str], exit_code: int, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "engine", *argv]) == exit_code
    error = capsys.readouterr().err
    assert error.startswith("inflight: ")
    assert error.count("\n") == 1
    assert named in error


def test_settings_become_the_flags_of_a_server() -> None:
    values = {"max_num_seqs": 4, "num_threads": None, "enable_chunked_prefill": False, "model": "a b.gguf"}
    assert as_flags(values) == ["--max-num-seqs=4", "--num-threads=none", "--no-enable-chunked-prefill", "a b.gguf"]
    assert as_flags({"model": None, "enable_chunked_prefill": True}) == ["--enable-chunked-prefill"]
