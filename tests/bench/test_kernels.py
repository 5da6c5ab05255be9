"""`inflight bench kernels` in small: every kernel is there, and operations and bytes are counted right."""

import json
from pathlib import Path
from typing import Any

import pytest

from inflight.bench import kernels as bench
from inflight.bench.kernel_times import attention, products
from inflight.bench.peaks import Peaks
from inflight.bench.programs import Setup, matrices
from inflight.bench.step_times import packed_bytes
from inflight.hub.resolve import ModelFiles
from inflight.native import NativeUnavailable, isa, kernels
from inflight.runtime.load import open_checkpoint
from inflight.runtime.models.base import ModelConfig

try:
    isa()
except NativeUnavailable as unavailable:
    pytest.skip(str(unavailable), allow_module_level=True)

TINY = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=320,
    hidden_size=128,
    intermediate_size=192,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    max_position_embeddings=512,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
    rope_scaling=None,
    tie_word_embeddings=True,
    num_parameters=0,
    weight_format="none",
)
SETUP_S = 0.0  # the least number of runs
PEAKS = Peaks(1e12, 1e11, ((2**10, 4e9), (2**12, 2e9), (2**14, 1e9)))


@pytest.fixture
def setup() -> Setup:
    return Setup(TINY, isa(), num_threads=1, budget_s=SETUP_S)


@pytest.mark.parametrize("format", ["int8", "q4"])
def test_products(setup: Setup, format: str) -> None:
    times = list(products(setup, format, rows=(1, 3)))
    assert [(one.kernel, one.num_rows) for one in times[:10]] == [
        (f"{name} hot", rows) for name in ("qkv", "o", "gate_up", "down", "logits") for rows in (1, 3)
    ]
    assert all(one.seconds > 0 for one in times)
    assert sum(one.kernel.endswith("cold") for one in times) == 10
    gate_up = next(one for one in times if one.kernel == "gate_up hot" and one.num_rows == 3)
    assert gate_up.int8_operations == 2 * 3 * (2 * 192) * 128
    kind = kernels.WeightFormat[format.upper()]
    assert gate_up.working_set_bytes == kernels.weight_bytes(kind, 2 * 192, 128)


@pytest.mark.parametrize("format", ["FLOAT32", "BFLOAT16", "INT8", "INT4"])
def test_attention(setup: Setup, format: str) -> None:
    decode, prefill = attention(setup, format, decodes=((3, 40),), chunks=((20, 16),))
    assert (decode.kernel, decode.num_rows, decode.fp32_operations) == ("attention decode", 3, 4 * 3 * 40 * 4 * 64)
    token_bytes = kernels.kv_block_bytes(kernels.KVFormat[format], 1, 16, 2, 64) // 16
    assert decode.working_set_bytes == 2 * 3 * 40 * token_bytes
    assert (prefill.kernel, prefill.num_rows) == ("attention prefill", 20)
    assert prefill.fp32_operations == 4 * sum(range(17, 37)) * 4 * 64
    assert min(decode.seconds, prefill.seconds) > 0


def test_the_roof() -> None:
    assert PEAKS.read_rate(2**12) == 2e9
    assert PEAKS.read_rate(2**11) == 3e9
    assert (PEAKS.read_rate(1), PEAKS.read_rate(2**20)) == (4e9, 1e9)
    read = PEAKS.bound(10**6, 0, 10**6, 2**12)
    assert (read.by, read.seconds) == ("read", 10**6 / 2e9)
    compute = PEAKS.bound(10**9, 10**8, 10, 2**12)
    assert (compute.by, compute.seconds) == ("int8", pytest.approx(2e-3))
    assert PEAKS.bound(0, 10**9, 10, 2**12).by == "fp32"


def test_the_bytes_of_a_step_are_those_of_the_packed_model(model_files: ModelFiles) -> None:
    checkpoint = open_checkpoint(model_files.path)
    config = checkpoint.config
    each = {one.name: one.num_outputs * one.num_inputs for one in matrices(config)}
    in_layers = sum(size for name, size in each.items() if name != "logits")
    num_weights = config.num_hidden_layers * in_layers + each["logits"]
    num_groups, rest = divmod(num_weights, kernels.COLUMNS * kernels.GROUP)
    assert rest == 0
    group_bytes = kernels.weight_bytes(kernels.WeightFormat.INT8, kernels.COLUMNS, kernels.GROUP)
    assert packed_bytes(checkpoint, "int8") == num_groups * group_bytes
    assert packed_bytes(checkpoint, "q4") < packed_bytes(checkpoint, "int8")


@pytest.fixture(scope="module")
def report(model_files: ModelFiles) -> dict[str, Any]:
    sizes = bench.Sizes(
        rows=(1,),
        decodes=((1, 32),),
        chunks=((16, 0),),
        batch_sizes=(1, 2),
        context=16,
        read_sizes=(2**16,),
        num_tries=1,
        budget_s=0,
    )
    return bench.measure(bench.KernelsConfig(num_threads=1), sizes)


def test_the_report(report: dict[str, Any]) -> None:
    assert json.loads(json.dumps(report)).keys() == {
        "benchmark", "settings", "versions", "peaks", "kernels", "steps",
    }  # fmt: skip
    named = {one["kernel"] for one in report["kernels"]}
    assert {"qkv hot", "logits cold", "attention decode", "rms_norm + quantise", "rotary + KV write", "argmax"} <= named
    for one in report["kernels"]:
        assert one["seconds"] > 0
        assert one["bound"] in ("read", "int8", "fp32")
        assert one["bytes_per_s"] == pytest.approx(one["num_bytes"] / one["seconds"])
    assert [(one["quantization"], one["batch_size"]) for one in report["steps"]] == [
        ("int8", 1), ("int8", 2), ("q4", 1), ("q4", 2),
    ]  # fmt: skip
    first, second = report["steps"][:2]
    assert second["int8_operations"] == 2 * first["int8_operations"]
    assert second["weight_bytes"] == first["weight_bytes"]
    assert all(
        rate > 0 for rate in (report["peaks"]["int8_operations_per_s"], report["peaks"]["fp32_operations_per_s"])
    )


def test_the_table_has_a_line_for_each(report: dict[str, Any]) -> None:
    lines = bench.as_text(report).splitlines()
    for one in report["kernels"]:
        assert any(line.startswith(one["kernel"]) and one["shape"] in line for line in lines)
    assert sum("% of" in line for line in lines) == len(report["kernels"]) + len(report["steps"])


def test_without_kernels_it_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from inflight.cli import main

    monkeypatch.setenv("INFLIGHT_MAX_CPU_ISA", "none")
    assert main(["bench", "kernels", "--json", str(tmp_path / "report.json")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("inflight: there are no native kernels")
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())
