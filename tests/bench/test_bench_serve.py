"""`inflight bench serve`, `curve` and `static-sweep`, with a tiny model, from the command line to the files."""

import csv
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from inflight.bench.over_http import serving
from inflight.cli import main
from inflight.engine.recorder import Added, Scheduled, read_step_log
from tiny_llama import write_tiny_llama

ENGINE = ["--num-threads", "1", "--max-num-batched-tokens", "64", "--num-gpu-blocks-override", "64"]
WORK = ["--num-requests", "7", "--prompt-tokens", "9", "--output-tokens", "5"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("tiny")
    write_tiny_llama(folder)
    return str(folder)


def bench(out: Path, *argv: str) -> dict[str, Any]:
    assert main(["bench", "serve", *argv, *WORK, "--save-detailed", "--json", str(out)]) == 0
    report: dict[str, Any] = json.loads(out.read_bytes())
    return report


def check(report: dict[str, Any]) -> None:
    assert (report["completed"], report["failed"], report["num_prompts"]) == (7, 0, 7)
    assert report["output_lens"] == [5] * 7
    assert report["total_output_tokens"] == 35
    assert report["output_throughput"] == pytest.approx(35 / report["duration"])
    assert report["errors"] == [""] * 7
    assert 0 < report["median_ttft_ms"] <= report["p99_ttft_ms"] <= report["p99_e2el_ms"] <= report["duration"] * 1e3
    own = report["inflight"]
    assert own["num_samples"]["ttft"] == own["num_samples"]["tpot"] == 7
    assert own["num_samples"]["itl"] == 28
    assert (own["num_not_ended"], own["num_shorter"], own["num_counted_by_chunks"]) == (0, 0, 0)


@pytest.fixture(scope="module")
def in_process(tiny: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return bench(tmp_path_factory.mktemp("in") / "out.json", "--in-process", "--model", tiny, *ENGINE)


def test_in_process(in_process: dict[str, Any]) -> None:
    check(in_process)
    assert in_process["total_input_tokens"] == 63
    assert in_process["request_rate"] == "inf"
    assert in_process.keys() >= {"date", "endpoint_type", "label", "tokenizer_id", "burstiness", "max_concurrency"}


def test_our_own_server_gives_the_same_texts(tiny: str, tmp_path: Path, in_process: dict[str, Any]) -> None:
    report = bench(tmp_path / "out.json", "--model", tiny, *ENGINE, "--max-concurrency", "2", "--slo", "e2el:60")
    check(report)
    assert report["total_input_tokens"] == 63
    assert report["generated_texts"] == in_process["generated_texts"]
    assert (report["backend"], report["max_concurrency"], report["max_concurrent_requests"]) == ("openai", 2, 2)
    assert report["inflight"]["good_share"] == 1.0


@pytest.mark.parametrize("endpoint", ["/v1/completions", "/v1/chat/completions"])
def test_any_server(tiny: str, tmp_path: Path, endpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with serving({"model": tiny, "num_threads": 1, "num_gpu_blocks_override": 64}) as server:
        flags = ["--base-url", f"{server.url}/v1/", "--tokenizer", tiny, "--endpoint", endpoint, "--request-rate", "50"]
        report = bench(tmp_path / "out.json", *flags)
    check(report)
    chat = endpoint.endswith("chat/completions")
    assert report["backend"] == ("openai-chat" if chat else "openai")
    # A chat's template adds tokens to each of the prompts, and the server counts them.
    assert (report["total_input_tokens"] > 63) is chat
    assert report["request_rate"] == 50.0
    shown = capsys.readouterr().out
    assert "7 answered, 0 failed" in shown
    assert "sent late by" in shown


@pytest.mark.parametrize("scheduler", ["static", "dynamic"])
def test_every_scheduler_in_this_process(tiny: str, tmp_path: Path, scheduler: str, in_process: dict[str, Any]) -> None:
    flags = [flag for flag in ENGINE if flag not in ("--max-num-batched-tokens", "64")] + ["64"]
    report = bench(tmp_path / "out.json", "--in-process", "--model", tiny, "--scheduler", scheduler, *flags)
    check(report)
    assert report["generated_texts"] == in_process["generated_texts"]


def test_every_scheduler_runs_the_race(tiny: str, tmp_path: Path) -> None:
    work = ["--num-prompts", "5", "--prompt-tokens", "9", "--output-tokens", "4", "--repeats", "1"]
    engine = ["--model", tiny, "--num-threads", "1", "--num-gpu-blocks-override", "64"]
    hashes, steps = set(), {}
    for scheduler, size in {
        "continuous": "--max-num-seqs",
        "static": "--batch-size",
        "dynamic": "--max-batch-size",
    }.items():
        out = tmp_path / f"{scheduler}.json"
        flags = ["--scheduler", scheduler, size, "2", "--num-callers", "2", "--json", str(out)]
        assert main(["bench", "engine", *work, *engine, *flags]) == 0
        (run,) = json.loads(out.read_bytes())["runs"]
        hashes.add(run["output_sha256"])
        steps[scheduler] = run["num_steps"]
        assert 0 < run["ttft_p50_s"] <= run["ttft_p99_s"] <= run["wall_s"]
    assert len(hashes) == 1
    assert steps["static"] == steps["dynamic"] == 3 * 4  # two, two and the one that is left


def test_the_race_has_no_prefix_cache_unless_it_is_asked_for(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = ["--num-prompts", "3", "--prompt-tokens", "65", "--output-tokens", "4", "--repeats", "1"]
    medians = {}
    for flags in ((), ("--enable-prefix-caching",)):
        out = tmp_path / "race.json"
        assert main(["bench", "engine", "--model", tiny, *work, *ENGINE, *flags, "--json", str(out)]) == 0
        medians[flags] = json.loads(out.read_bytes())["median"]
        assert ("prefix cache off" in capsys.readouterr().out) == (not flags)
    off, on = medians.values()
    assert off["output_sha256"] == on["output_sha256"]
    num_run = [one["num_steps"] * one["mean_step_tokens"] for one in (off, on)]
    assert num_run == pytest.approx([3 * (65 + 3), 3 * (65 + 3 - 64)])  # the warm-up has left four blocks of each


def test_the_warm_up_leaves_nothing_that_the_run_could_find(tiny: str, tmp_path: Path) -> None:
    log, out = tmp_path / "steps.jsonl", tmp_path / "out.json"
    work = ["--num-requests", "4", "--prompt-tokens", "40", "--output-tokens", "2", "--num-warmups", "6"]
    target = ["--in-process", "--model", tiny, "--step-log", str(log)]
    assert main(["bench", "serve", *target, *work, *ENGINE, "--json", str(out)]) == 0
    prompts = [line.request.prompt_token_ids for line in read_step_log(log) if isinstance(line, Added)]
    assert [prompt[::-1] for prompt in prompts[:6]] == [*prompts[6:], *prompts[6:8]]
    outputs = [line.output for line in read_step_log(log) if isinstance(line, Scheduled)]
    starts: dict[str, int] = {}
    for row in (row for output in outputs for row in output.scheduled):
        starts.setdefault(row.seq_id[0], row.start)
    assert [start for item_id, start in starts.items() if not item_id.startswith("warm-up")] == [0] * 4
    assert max(starts.values()) > 0  # the two of the warm-up that came twice


def test_a_curve_of_callers(tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "curve.v1"
    flags = ["--levels", "1,2,4", "--waves", "1", "--repeats", "2", "--slo", "ttft:60", "--out", str(out)]
    work = ["--prompt-tokens", "9", "--output-tokens", "3", "--json", str(tmp_path / "curve.json")]
    assert main(["bench", "curve", "--in-process", "--model", tiny, *flags, *work, *ENGINE]) == 0
    shown = capsys.readouterr().out
    assert "knee" in shown
    assert "prefix cache off" in shown
    assert "level 4 is the highest that keeps ttft <= 60 s" in shown
    rows = list(csv.DictReader((tmp_path / "new" / "curve.v1.csv").open()))
    assert [(row["level"], row["num_runs"], row["completed"], row["failed"]) for row in rows] == [
        ("1", "2", "16", "0"),
        ("2", "2", "16", "0"),
        ("4", "2", "16", "0"),
    ]
    assert all(float(row["output_throughput"]) > 0 for row in rows)
    assert (tmp_path / "new" / "curve.v1.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "new" / "curve.v1.svg").read_text()
    report = json.loads((tmp_path / "curve.json").read_bytes())
    assert len(report["gains"]) == 2
    assert report["levels"][0]["output_throughputs"][0] > 0


def test_a_curve_of_batch_sizes(tiny: str, tmp_path: Path) -> None:
    flags = ["--levels", "1,2", "--waves", "2", "--repeats", "1", "--scheduler", "static", "--out", str(tmp_path / "c")]
    work = ["--prompt-tokens", "9", "--output-tokens", "3", "--num-threads", "1", "--num-gpu-blocks-override", "64"]
    assert main(["bench", "curve", "--in-process", "--model", tiny, *flags, *work]) == 0
    rows = list(csv.DictReader((tmp_path / "c.csv").open()))
    assert [(row["level"], row["output_throughput_low"], row["p50_tpot_ms"]) for row in rows] == [
        ("1", "", "0.0"),  # one run has no interval; a batch comes back together
        ("2", "", "0.0"),
    ]


def test_a_static_sweep(tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--batch-sizes", "1,3", "--prompt-tokens", "10", "--output-tokens", "4", "--num-threads", "1"]
    assert main(["bench", "static-sweep", "--model", tiny, *flags, "--json", str(tmp_path / "sweep.json")]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head == "prompts of 10 tokens, 4 new tokens for each sequence"
    number = r"\d+\.\d+"
    for line, batch_size in zip(lines, (1, 3), strict=False):
        assert re.fullmatch(
            rf"batch_size={batch_size}: duration {number} s, throughput {number} tokens/s, TTFT {number} s "
            rf"\(computed after {number} s\), TPOT {number} s/token, amortised {number} ms/token",
            line,
        )
    assert "It is no latency" in lines[-1]
    for row in json.loads((tmp_path / "sweep.json").read_bytes())["rows"]:
        assert row["tokens_per_s"] == pytest.approx(row["batch_size"] * 4 / row["duration_s"])
        assert row["amortised_ms_per_token"] == pytest.approx(1e3 * row["duration_s"] / (row["batch_size"] * 4))
        assert 0 < row["first_token_s"] < row["duration_s"]
        assert row["first_token_s"] + 3 * row["tpot_s"] <= row["duration_s"] * 1.001


@pytest.mark.parametrize(
    ("argv", "exit_code", "named"),
    [
        (["serve", "--base-url", "http://127.0.0.1:1"], 1, "http://127.0.0.1:1"),
        (["serve", "--base-url", "127.0.0.1:8000"], 2, "http://"),
        (["serve", "--base-url", "http://"], 2, "host"),
        (["serve", "--base-url", "http://x:99999"], 2, "port"),
        (["serve", "--base-url", "http://x:y"], 2, "port"),
        (["serve", "--base-url", "http://x/v1?y=1"], 2, "path"),
        (["serve", "--base-url", "http://x", "--api-key", "a\n"], 2, "API key"),
        (["serve", "--base-url", "http://x", "--in-process"], 2, "exclude"),
        (["serve", "--base-url", "http://x", "--max-num-seqs", "4"], 2, "--max-num-seqs"),
        (["serve", "--slo", "ttft"], 2, "slo"),
        (["serve", "--slo", "ttft:nan"], 2, "nan"),
        (["serve", "--num-requests", "0"], 2, "num_requests"),
        (["engine", "--http", "--scheduler", "static"], 2, "--fill-timeout-ms"),
        (["serve", "--max-concurrency", "0"], 2, "max_concurrency"),
        (["serve", "--extra-body", "[1]"], 2, "extra_body"),
        (["serve", "--request-timeout-s", "0"], 2, "request_timeout_s"),
        (["serve", "--scheduler", "static"], 2, "--fill-timeout-ms"),
        (["curve", "--levels", "4,2"], 2, "levels"),
        (["curve", "--levels", "0"], 2, "levels"),
        (["curve", "--request-rate", "3"], 2, "request_rate"),
        (["curve", "--trace", "x.jsonl", "--request-rate", "3"], 2, "request_rate"),
        (["curve", "--trace", "x.jsonl", "--arrival", "replay"], 2, "arrival"),
        (["curve", "--in-process", "--scheduler", "static", "--batch-size", "4"], 2, "batch_size"),
        (["curve", "--in-process", "--scheduler", "dynamic", "--max-batch-size", "4"], 2, "max_batch_size"),
        (["curve", "--base-url", "http://x", "--scheduler", "static"], 2, "--scheduler"),
        (["static-sweep", "--scheduler", "dynamic"], 2, "scheduler"),
        (["static-sweep", "--batch-sizes", "0"], 2, "batch_sizes"),
    ],
    ids=str,
)
def test_wrong_usage_is_one_line(
    argv: list[str], exit_code: int, named: str, tiny: str, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--tokenizer", tiny] if "--base-url" in argv else ["--model", tiny]
    assert (
        main(["bench", argv[0], *(where if "--base-url" not in argv or "http://127" in argv[2] else []), *argv[1:]])
        == exit_code
    )
    error = capsys.readouterr().err
    assert error.startswith("inflight: ")
    assert error.count("\n") == 1
    assert named in error


def test_ctrl_c_reports_what_was_done(tiny: str, tmp_path: Path) -> None:
    log = tmp_path / "steps.jsonl"
    argv = ["bench", "serve", "--in-process", "--model", tiny, *ENGINE, *WORK, "--request-rate", "0.001"]
    argv += ["--arrival", "constant", "--num-warmups", "0", "--step-log", str(log)]
    command = [sys.executable, "-m", "inflight.cli", *argv]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not (log.exists() and '"length"' in log.read_text()):
            time.sleep(0.05)
        time.sleep(0.2)  # until the run sleeps
        process.send_signal(signal.SIGINT)
        shown, error = process.communicate(timeout=60)
    assert "1 answered, 0 failed" in shown, error
    assert "interrupted: 6 requests had not ended" in shown
    assert process.returncode == 130
