"""``inflight plan memory``: its answer beside what a loaded model takes, and what it says without weights."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from inflight.cli import main
from inflight.native import NativeUnavailable, isa
from inflight.runtime.load import open_checkpoint
from inflight.runtime.models import llama_sizes
from inflight.runtime.models.llama_sizes import StepSize, native_buffer_bytes

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}


def plan(tmp_path: Path, *argv: str) -> dict[str, Any]:
    out = tmp_path / "plan.json"
    assert main(["plan", "memory", *argv, "--json", str(out)]) == 0
    report: dict[str, Any] = json.loads(out.read_bytes())
    return report


@pytest.fixture
def config_alone(tmp_path: Path) -> str:
    folder = tmp_path / "alone"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return str(folder)


def test_a_configuration_alone_is_enough(config_alone: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = plan(tmp_path, config_alone, "--memory-budget", "40000000000", "--quantization", "none")
    assert report["fits"]
    assert report["num_parameters"] == 8_030_261_248
    assert report["weight_bytes"] == 4 * 8_030_261_248
    assert report["kv_token_bytes"] == 2 * 32 * 8 * 128 * 4
    text = capsys.readouterr().out
    assert "GQA: 32 query heads on 8 KV heads" in text
    assert "524,288 bytes a token: 2.00 times that" in text  # stored in float32, and a group of 4 shares it
    assert plan(tmp_path, f"{config_alone}/config.json", "--memory-budget", "40000000000")["fits"]


def test_callers_are_the_blocks_over_those_of_one(config_alone: str, tmp_path: Path) -> None:
    report = plan(
        tmp_path, config_alone, "--memory-budget", "60000000000", "--prompt-tokens", "100", "--output-tokens", "29",
        "--quantization", "none", "--kv-cache-dtype", "bfloat16",
    )  # fmt: skip
    (row,) = [row for row in report["callers"] if row["num_tokens"] == 129]
    assert row["bfloat16"] == report["num_blocks"] // 9
    assert row["float32"] < row["bfloat16"] < row["int8"] < row["int4"]
    assert report["callers"][-1]["num_tokens"] == report["max_model_len"]


def test_what_does_not_fit_is_the_answer(config_alone: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = plan(tmp_path, config_alone, "--memory-budget", "4000000000")
    assert not report["fits"]
    assert "do not fit into 0.9 x 3.73 GiB" in report["why_not"]
    assert "It does not fit." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "exit_code", "words"),
    [
        (["--measure"], 2, "--measure needs the weights"),
        (["--prompt-tokens", "0"], 2, "prompt_tokens"),
        (["--swap-space-bytes", "-1"], 2, "swap_space_bytes"),
    ],
)
def test_wrong_usage_is_one_line(
    config_alone: str, argv: list[str], exit_code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "memory", config_alone, *argv]) == exit_code
    error = capsys.readouterr().err
    assert error.startswith("inflight: ")
    assert words in error
    assert error.count("\n") == 1


def test_serve_refuses_to_start_with_the_numbers(tiny_model: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", tiny_model, "--port", "0", "--memory-budget", "10000000", "--reserve-bytes", "9000000"]) == 1
    error = capfd.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("inflight: ")
    assert "0.01 GiB reserved" in error


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell what is resident")
def test_predicted_against_measured(model_files: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        isa()
    except NativeUnavailable as why:
        pytest.skip(str(why))
    flags = ["--quantization", "int8", "--scheduler", "static", "--batch-size", "8", "--max-model-len", "96"]
    flags += [
        "--prompt-tokens",
        "95",
        "--output-tokens",
        "1",
        "--num-gpu-blocks-override",
        "200",
        "--num-threads",
        "1",
    ]
    out = tmp_path / "plan.json"
    # A process of its own: what this one has freed before would be taken again, and not grow it.
    subprocess.run(
        [sys.executable, "-m", "inflight.cli", "plan", "memory", "--measure", *flags, "--json", str(out)],
        check=True, capture_output=True,
    )  # fmt: skip
    report = json.loads(out.read_bytes())
    measured = report["measured"]
    weights, kv, activations, together = measured.values()
    assert abs(weights["difference_percent"]) < 2
    assert abs(kv["difference_percent"]) < 2
    # Buffers are whole huge pages. A system without them counts only what was touched.
    assert activations["difference_percent"] < 2
    monkeypatch.setattr(llama_sizes, "HUGE_PAGE_BYTES", 1)
    touched = native_buffer_bytes(open_checkpoint(model_files.path).config, StepSize(8 * 96, 8, 96))
    assert activations["measured"] > 0.98 * touched
    # A batch is reckoned with the longest prompt and the longest answer of each row.
    assert together["measured"] <= report["batch"]["total_bytes"] <= 1.25 * together["measured"]
