"""``inflight plan memory``: its answer beside what a loaded model takes, and what it says without weights."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from inflight.cache.manager import Reuse
from inflight.cli import main
from inflight.core.request import Request, SamplingParams
from inflight.core.sequence import Sequence
from inflight.native import NativeUnavailable, isa
from inflight.runtime.load import open_checkpoint
from inflight.runtime.models import llama_sizes
from inflight.runtime.models.llama_sizes import StepSize, native_buffer_bytes
from inflight.schedulers.admission import make_admission
from inflight.schedulers.config import ContinuousConfig
from inflight.schedulers.memory import make_kv_cache

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
    exit_code = main(["plan", "memory", *argv, "--json", str(out)])
    report: dict[str, Any] = json.loads(out.read_bytes())
    assert exit_code == (report["budget"] is None)
    return report


@pytest.fixture
def config_alone(tmp_path: Path) -> str:
    folder = tmp_path / "alone"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return str(folder)


def test_a_configuration_alone_is_enough(config_alone: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = plan(tmp_path, config_alone, "--memory-budget", "40000000000", "--quantization", "none")
    assert report["budget"]["num_blocks"] > 0
    assert report["demand"]["num_parameters"] == 8_030_261_248
    assert report["demand"]["weight_bytes"] == 4 * 8_030_261_248
    assert report["demand"]["kv_token_bytes"] == 2 * 32 * 8 * 128 * 4
    text = capsys.readouterr().out
    assert "GQA: 32 query heads on 8 KV heads" in text
    assert "524,288 bytes a token: 2.00 times that" in text  # stored in float32, and a group of 4 shares it
    assert plan(tmp_path, f"{config_alone}/config.json", "--memory-budget", "40000000000")["budget"]


@pytest.mark.parametrize("kv_allocator", ["paged", "contiguous"])
@pytest.mark.parametrize(("prompt", "output"), [(100, 29), (100, 30), (1, 1), (33, 64)])
def test_callers_are_those_that_a_scheduler_admits(
    config_alone: str, tmp_path: Path, kv_allocator: str, prompt: int, output: int
) -> None:
    """The rule that promises every row its longest lets so many in, and not one more."""
    report = plan(
        tmp_path, config_alone, "--memory-budget", "60000000000", "--max-model-len", "200", "--quantization", "none",
        "--prompt-tokens", str(prompt), "--output-tokens", str(output), "--kv-allocator", kv_allocator,
    )  # fmt: skip
    budget = report["budget"]
    (row,) = [row for row in budget["callers"] if row["num_tokens"] == prompt + output]
    num_callers = row["num_callers"]["float32"]
    scheduler = ContinuousConfig(max_model_len=200, kv_allocator=kv_allocator, admission="reserve-all")
    kv = make_kv_cache(scheduler, budget["num_blocks"], block_size=16)
    admission = make_admission(scheduler, kv)
    request = Request(request_id="caller", prompt_token_ids=(1,) * prompt, sampling=SamplingParams(max_tokens=output))
    *running, last, one_more = (Sequence(request, i, (0.0, i), prompt + output) for i in range(num_callers + 1))
    assert admission.admits(last, Reuse(), running)
    assert not admission.admits(one_more, Reuse(), [*running, last])
    each = kv.num_blocks_for(last.max_num_stored)
    assert report["batch"]["kv_bytes"] == report["batch"]["num_rows"] * each * report["demand"]["block_bytes"]


def test_callers_by_the_format_of_their_kv(config_alone: str, tmp_path: Path) -> None:
    budget = plan(
        tmp_path, config_alone, "--memory-budget", "60000000000", "--prompt-tokens", "100", "--output-tokens", "29",
        "--quantization", "none", "--kv-cache-dtype", "bfloat16",
    )["budget"]  # fmt: skip
    (row,) = [row["num_callers"] for row in budget["callers"] if row["num_tokens"] == 129]
    assert row["bfloat16"] == budget["num_blocks"] // 8  # 128 tokens are stored: the last is never run
    assert row["float32"] < row["bfloat16"] < row["int8"] < row["int4"]
    assert budget["callers"][-1]["num_tokens"] == budget["max_model_len"]


def test_a_server_that_would_not_start_is_no_plan(
    config_alone: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ("--memory-budget", "60000000000", "--num-gpu-blocks-override", "1", "--scheduler", "static")
    report = plan(tmp_path, config_alone, *settings)
    assert "padding needs half of them" in report["why_not"]
    assert "As a server would start" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"num_hidden_layers": 100_000_000}, "num_hidden_layers must be at most 10,000"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings must be true or false, got 'false'"),
        ({"mlp_bias": 1}, "mlp_bias must be true or false, got 1"),
    ],
    ids=str,
)
def test_a_config_that_says_nonsense(
    config_alone: str, changed: dict[str, Any], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = Path(config_alone) / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))
    assert main(["plan", "memory", config_alone]) == 1
    assert words in capsys.readouterr().err


def test_what_does_not_fit_is_the_answer(config_alone: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = plan(tmp_path, config_alone, "--memory-budget", "4000000000")
    assert report["budget"] is None
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
    model = open_checkpoint(model_files.path).config
    step = StepSize(8 * 96, 8, 96)
    predicted = {part: measured[part]["predicted"] for part in ("weights", "kv", "buffers")}
    assert predicted["buffers"] == native_buffer_bytes(model, step)
    # Buffers are planned in whole huge pages. Where the system has none to give, at this moment or at all, only what is
    # touched of them is resident: how much of the rest is there is the system's choice, and no prediction's.
    monkeypatch.setattr(llama_sizes, "HUGE_PAGE_BYTES", 1)
    least = predicted | {"buffers": native_buffer_bytes(model, step)}
    for part in predicted:
        assert 0.98 * least[part] < measured[part]["measured"] < 1.02 * predicted[part], part
    together = measured["together"]
    assert together["predicted"] == sum(predicted.values())
    assert 0.98 * sum(least.values()) < together["measured"] < 1.02 * together["predicted"]
    # A batch is reckoned with the longest prompt and the longest answer of each row.
    assert together["measured"] <= report["batch"]["total_bytes"] <= 1.25 * together["measured"]
