"""Our logits and tokens against transformers'."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch_worlds import VOCAB_SIZE, Driver, greedy, knows, load, make_llama, seq

import inflight.runtime.load
from inflight.core.output import ScheduledSequence
from inflight.runtime.config import DTYPES
from inflight.runtime.errors import UnsupportedModel
from inflight.runtime.linear import dense
from inflight.runtime.load import TORCH_DTYPES, open_checkpoint
from inflight.runtime.runner import ModelExecutor

LLAMA3_SCALING = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "grouped": {},
    "multi_head": {"num_key_value_heads": 6},
    "multi_query": {"num_key_value_heads": 1},
    "wide_groups": {"num_attention_heads": 20, "num_key_value_heads": 1, "hidden_size": 80, "head_dim": 4},
    "other_head_dim": {"head_dim": 16},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "tied": {"tie_word_embeddings": True},
    "linear_rope": {"rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0}},
    "llama3_rope": {"rope_parameters": LLAMA3_SCALING},
}


def logits_of(executor: ModelExecutor, token_ids: list[int]) -> torch.Tensor:
    """Logits of every position, in one step."""
    forward = executor._forward
    assert forward is not None
    blocks = tuple(range(-(-len(token_ids) // forward.capacity.block_size)))
    return forward.run((ScheduledSequence(seq(), tuple(token_ids), 0, blocks, len(token_ids)),)).values


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_and_greedy_tokens_equal_transformers(tmp_path: Path, variant: str) -> None:
    reference = make_llama(tmp_path, **VARIANTS[variant])
    executor = load(tmp_path)
    random = np.random.default_rng(0)
    prompts = [random.integers(2, VOCAB_SIZE, size=n).tolist() for n in (1, 5, 33, 150)]
    driver = Driver(executor)
    for index, prompt in enumerate(prompts):
        with torch.inference_mode():
            expected = reference(torch.tensor([prompt])).logits[0]
        torch.testing.assert_close(logits_of(executor, prompt), expected, atol=1e-4, rtol=1e-4)
        driver.add(seq(str(index)), prompt, greedy())
    tokens = driver.finish(12)
    for index, prompt in enumerate(prompts):
        expected_ids = reference.generate(
            torch.tensor([prompt]), max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        assert tokens[seq(str(index))] == expected_ids[0, len(prompt) :].tolist()
    kind = {"multi_head": "MHA", "multi_query": "MQA", "wide_groups": "MQA"}.get(variant, "GQA")
    assert executor.model_config.attention_kind == kind
    assert executor.model_config.num_parameters == reference.num_parameters()


def test_sharded_checkpoint_loads_as_the_single_file_does(tmp_path: Path) -> None:
    make_llama(tmp_path / "one")
    tensors = load_file(tmp_path / "one/model.safetensors")
    sharded = tmp_path / "two"
    sharded.mkdir()
    (sharded / "config.json").write_bytes((tmp_path / "one/config.json").read_bytes())
    shards = {name: f"part-{index % 2}.safetensors" for index, name in enumerate(sorted(tensors))}
    for file in set(shards.values()):
        save_file({name: tensors[name] for name in tensors if shards[name] == file}, sharded / file)
    (sharded / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    prompt = list(range(2, 40))
    assert torch.equal(logits_of(load(tmp_path / "one"), prompt), logits_of(load(sharded), prompt))


@pytest.mark.parametrize(("name", "kv_error", "error"), [("bfloat16", 0.05, 0.2), ("float16", 0.01, 0.02)])
def test_half_the_bits_are_near_float32_and_take_half(tmp_path: Path, name: str, kv_error: float, error: float) -> None:
    make_llama(tmp_path, initializer_range=0.1)
    prompt = list(range(2, 60))
    exact, rounded, mixed = (
        load(tmp_path, dtype=dtype, kv_cache_dtype=kv)
        for dtype, kv in (("float32", "auto"), (name, "auto"), ("float32", name))
    )
    expected = logits_of(exact, prompt)
    assert 0 < (logits_of(mixed, prompt) - expected).abs().max() < kv_error
    assert 0 < (logits_of(rounded, prompt) - expected).abs().max() < error
    assert exact.capacity.bytes_per_block == 2 * rounded.capacity.bytes_per_block
    assert mixed.capacity.bytes_per_block == rounded.capacity.bytes_per_block


def test_dtypes_go_by_all_their_names(tmp_path: Path) -> None:
    assert set(DTYPES) == {"auto", *TORCH_DTYPES}
    make_llama(tmp_path)
    prompt = list(range(2, 20))
    for name, other in (("half", "float16"), ("float", "float32"), ("auto", "float32")):
        assert torch.equal(*(logits_of(load(tmp_path, dtype=n, kv_cache_dtype=n), prompt) for n in (name, other)))


def test_emulated_float16_is_said_and_is_as_near(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_llama(tmp_path, initializer_range=0.1, attention_bias=True)
    prompt = list(range(2, 60))
    expected = logits_of(load(tmp_path, dtype="float32"), prompt)
    for module in (dense, inflight.runtime.load):
        monkeypatch.setattr(module, "is_emulated", lambda dtype, device: dtype == torch.float16)
    emulated = load(tmp_path, dtype="float16")
    assert any("float16 is emulated on this CPU" in note for note in emulated.notes)
    assert not any("emulated" in note for note in load(tmp_path, dtype="float32").notes)
    assert 0 < (logits_of(emulated, prompt) - expected).abs().max() < 0.02


def test_numbers_beyond_float16_fail_their_row_alone(tmp_path: Path) -> None:
    make_llama(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.embed_tokens.weight"][5] = 6e4  # float16 holds it, but not what the layers add to it
    tensors["model.layers.0.self_attn.o_proj.weight"] *= 500.0
    tensors["model.layers.0.self_attn.v_proj.weight"][:] = 1.0
    save_file(tensors, tmp_path / "model.safetensors")
    executor = load(tmp_path, dtype="float16")
    driver = Driver(executor)
    for name, prompt in (("good", [6, 7, 8]), ("beyond", [5, 5, 5])):
        driver.add(seq(name), prompt, greedy())
    result = driver.run({seq("good"): 3, seq("beyond"): 3})
    assert [row.seq_id for row in result.sampled] == [seq("good")]
    assert [row.seq_id for row in result.failed] == [seq("beyond")]
    alone = Driver(executor)
    alone.add(seq("alone"), [6, 7, 8], greedy())
    assert alone.run({seq("alone"): 3}).sampled[0].tokens == result.sampled[0].tokens


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel is not supported; supported: LlamaForCausalLM"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "yarn is not supported; supported: default"),
        ({"rope_parameters": {"rope_type": "linear"}}, "lacks 'factor'"),
        ({"vocab_size": None}, "vocab_size"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    make_llama(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | change
    config = {key: value for key, value in config.items() if value is not None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModel, match=words):
        load(tmp_path)


SIZES = (
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "vocab_size",
    "max_position_embeddings",
)


def change_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize("key", SIZES)
@pytest.mark.parametrize("value", [0, -1, 1.5, "two", True, [3], {}], ids=str)
def test_a_size_that_is_none_is_refused_by_file_key_and_value(tmp_path: Path, key: str, value: Any) -> None:
    make_llama(tmp_path)
    change_config(tmp_path, **{key: value})
    with pytest.raises(UnsupportedModel, match=rf"config\.json: {key} must be an integer from 1, got ") as caught:
        open_checkpoint(tmp_path)
    assert str(caught.value).endswith(repr(value))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_key_value_heads": 4}, "config.json: num_key_value_heads 4 must divide the number of heads, 6"),
        ({"head_dim": 7}, "config.json: the size of a head must be even, got head_dim 7"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 0.0}}, "config.json: rope_theta .* got 0.0"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": -1}}, "config.json: rope_theta .* got -1"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": "big"}}, "config.json: rope_theta .* got 'big'"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 10**400}}, "config.json: rope_theta .* got 1000"),
        ({"rope_parameters": [1]}, r"config.json: rope_parameters must be an object, got \[1\]"),
        ({"rope_parameters": None, "rope_scaling": "linear"}, "config.json: rope_scaling must be an object"),
        ({"rope_parameters": {"rope_type": "linear", "factor": "x"}}, "factor must be a number above 0, got 'x'"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 0}}, "factor must be a number above 0, got 0"),
        ({"rope_parameters": {"rope_type": ["linear"]}}, "rope scaling .*linear.* is not supported"),
        ({"rope_parameters": LLAMA3_SCALING | {"high_freq_factor": 1.0}}, "must differ"),
        ({"rms_norm_eps": None}, "config.json: rms_norm_eps .* got None"),
        ({"rms_norm_eps": float("nan")}, "config.json: rms_norm_eps .* got nan"),
        ({"partial_rotary_factor": "half"}, "partial rotary"),
        ({"architectures": 3}, "config.json: architectures must be a list of names, got 3"),
        ({"architectures": [["x"]]}, "config.json: architectures must be a list of names"),
    ],
    ids=str,
)
def test_settings_that_cannot_be_are_refused_by_name(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    make_llama(tmp_path)
    change_config(tmp_path, **change)
    with pytest.raises(UnsupportedModel, match=words) as caught:
        load(tmp_path)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"vocab_size": VOCAB_SIZE + 1}, r"embed_tokens.weight is of shape \[97, 48\], by .* \[98, 48\]"),
        ({"hidden_size": 50, "head_dim": 8}, "embed_tokens"),
        ({"intermediate_size": 81}, "gate_proj"),
        ({"num_attention_heads": 4, "head_dim": 8}, "q_proj"),
        ({"num_key_value_heads": 1}, "k_proj"),
        ({"head_dim": 16}, "q_proj"),
        ({"num_hidden_layers": 1}, "more layers than the 1"),
        ({"num_hidden_layers": 3}, "no tensor model.layers.2"),
    ],
    ids=str,
)
def test_weights_of_another_shape_than_configured_are_refused(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    make_llama(tmp_path)
    change_config(tmp_path, **change)
    with pytest.raises(UnsupportedModel, match=words) as caught:
        load(tmp_path)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "lm_head.weight",
        "model.norm.weight",
        *(
            f"model.layers.1.{part}"
            for part in (
                "input_layernorm.weight",
                "post_attention_layernorm.weight",
                "self_attn.v_proj.weight",
                "self_attn.v_proj.bias",
                "self_attn.o_proj.weight",
                "mlp.up_proj.weight",
                "mlp.down_proj.weight",
            )
        ),
    ],
)
def test_a_single_tensor_of_another_shape_is_refused_by_name(tmp_path: Path, name: str) -> None:
    make_llama(tmp_path, attention_bias=True)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors[name] = tensors[name][:-2].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=f"{name} is of shape"):
        load(tmp_path)


@pytest.mark.parametrize(
    "content",
    ["{}", '{"weight_map": 3}', '{"weight_map": ["a"]}', '{"weight_map": {"a": 3}}', "[1]", "[" * 100_000, "\udcff"],
    ids=lambda content: content[:20],
)
@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
def test_json_of_another_form_is_refused_by_file(tmp_path: Path, name: str, content: str) -> None:
    make_llama(tmp_path)
    (tmp_path / name).write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(UnsupportedModel, match=str(tmp_path)):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("device", ["", "nonsense", "meta", "cuda:99", "cpu:7"])
def test_a_device_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path, device: str) -> None:
    make_llama(tmp_path)
    with pytest.raises(ValueError, match=rf"device must be one that is here \(cpu.*\), got '{device}'"):
        load(tmp_path, device=device)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGUF\x03\x00\x00\x00" + b"\xff" * 64, b"no gguf at all"])
def test_broken_gguf_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    with pytest.raises(UnsupportedModel):
        open_checkpoint(path)


def test_paths_that_hold_no_model_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent", tmp_path / "absent.gguf"):
        with pytest.raises(UnsupportedModel):
            open_checkpoint(path)


def test_state_starts_at_new_and_ends_at_finished(tiny: ModelExecutor) -> None:
    driver = Driver(tiny)
    driver.add(seq(), [5, 6, 7], greedy())
    driver.finish(3)
    assert knows(tiny, seq())
    driver.end()
    assert not knows(tiny, seq())
