"""A model written as GGUF, in several formats, is the model that was written."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType as Kind
from torch_worlds import VOCAB_SIZE, Driver, greedy, load, make_llama, seq

from inflight.runtime.errors import UnsupportedModel
from inflight.runtime.load import open_checkpoint
from inflight.runtime.weights.gguf import GGUFCheckpoint

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def permute(values: np.ndarray, num_heads: int) -> np.ndarray:
    """The order of rows that llama.cpp wants: pair (i, i + head_dim / 2) becomes neighbours (2i, 2i + 1)."""
    out = np.empty_like(values)
    head_dim = values.shape[0] // num_heads
    for row in range(values.shape[0]):
        head, within = divmod(row, head_dim)
        half, pair = divmod(within, head_dim // 2)
        out[head * head_dim + 2 * pair + half] = values[row]
    return out


def write_gguf(
    path: Path, model: transformers.LlamaForCausalLM, kind: Kind = Kind.F32, **changes: Any
) -> dict[str, np.ndarray]:
    """Write ``model``; return its tensors as the format keeps them, under their Hugging Face names."""
    config = model.config
    writer = gguf.GGUFWriter(path, changes.get("architecture", "llama"))
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(changes.get("context_length", config.max_position_embeddings))
    writer.add_embedding_length(changes.get("embedding_length", config.hidden_size))
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(changes.get("head_count", config.num_attention_heads))
    writer.add_head_count_kv(changes.get("head_count_kv", config.num_key_value_heads))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(changes.get("freq_base", config.rope_parameters["rope_theta"]))
    writer.add_rope_dimension_count(changes.get("rope_dimension_count", config.head_dim))
    writer.add_token_list([f"token {i}" for i in range(config.vocab_size)])
    writer.add_token_types([1] * config.vocab_size)
    if "expert_count" in changes:
        writer.add_expert_count(changes["expert_count"])
    if "rope_factors" in changes:
        writer.add_tensor("rope_freqs.weight", changes["rope_factors"])
    kept = {}
    for name, parameter in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = parameter.float().numpy()
        stem, _, suffix = name.rpartition(".")
        if ".q_proj" in name or ".k_proj" in name:
            num_heads = config.num_attention_heads if ".q_proj" in name else config.num_key_value_heads
            values = permute(values, num_heads)
        if stem.startswith("model.layers."):
            _, _, index, part = stem.split(".", 3)
            target = f"blk.{index}.{NAMES[part]}.{suffix}"
        else:
            target = f"{NAMES[stem]}.{suffix}"
        used = Kind.F32 if values.ndim == 1 else kind
        stored = gguf.quantize(values, used)
        writer.add_tensor(target, stored, raw_dtype=used)
        kept[name] = gguf.dequantize(stored, used)
        if ".q_proj" in name or ".k_proj" in name:
            order = permute(np.arange(values.shape[0]), num_heads)
            kept[name] = kept[name][np.argsort(order)]
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return kept


@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1])
@pytest.mark.parametrize("options", [{}, {"tie_word_embeddings": True, "attention_bias": True}])
def test_gguf_round_trip(tmp_path: Path, kind: Kind, options: dict[str, Any]) -> None:
    # Rows must be multiples of 32, the block of the quantised formats.
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
    reference = make_llama(tmp_path, **sizes, **options)
    path = tmp_path / "model.gguf"
    kept = write_gguf(path, reference, kind)
    reference.load_state_dict({name: torch.from_numpy(values.copy()) for name, values in kept.items()}, strict=False)
    checkpoint = GGUFCheckpoint(path)
    for name, values in kept.items():
        assert name in checkpoint
        assert np.array_equal(checkpoint.load(name, torch.float32).numpy(), values)
    config = checkpoint.config
    assert (config.weight_format, config.vocab_size) == (kind.name, VOCAB_SIZE)
    assert config.num_parameters == reference.num_parameters()
    driver = Driver(load(path))
    prompt = list(range(2, 30))
    driver.add(seq(), prompt, greedy())
    expected = reference.generate(
        torch.tensor([prompt]), max_new_tokens=10, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert driver.finish(10)[seq()] == expected[0, len(prompt) :].tolist()


def test_k_quants_are_read(tmp_path: Path) -> None:
    """A tensor of Q4_K and Q6_K blocks of random bits reads as the format's own reference reads it."""
    reference = make_llama(tmp_path, hidden_size=256, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=1)
    random = np.random.default_rng(0)
    for kind in (Kind.Q4_K, Kind.Q6_K):
        path = tmp_path / f"{kind.name}.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        for add, value in (
            (writer.add_block_count, 1),
            (writer.add_context_length, 64),
            (writer.add_embedding_length, 256),
            (writer.add_feed_forward_length, 80),
            (writer.add_head_count, 4),
            (writer.add_head_count_kv, 2),
            (writer.add_layer_norm_rms_eps, 1e-5),
        ):
            add(value)
        _, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        stored = random.integers(0, 60, size=(VOCAB_SIZE, block_bytes), dtype=np.uint8)
        writer.add_tensor("token_embd.weight", stored, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        loaded = GGUFCheckpoint(path).load("model.embed_tokens.weight", torch.float32)
        assert loaded.shape == reference.model.embed_tokens.weight.shape
        assert np.array_equal(loaded.numpy(), gguf.dequantize(stored, kind))


def test_llama3_rope_factors_are_those_of_the_config(tmp_path: Path) -> None:
    scaling = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0}
    scaling |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    reference = make_llama(tmp_path, rope_parameters=scaling)
    plain = 1.0 / 10000.0 ** (torch.arange(0, 8, 2).float() / 8)
    factors = (plain / reference.model.rotary_emb.inv_freq).numpy()
    write_gguf(tmp_path / "model.gguf", reference, rope_factors=factors)
    outcomes = []
    for path in (tmp_path, tmp_path / "model.gguf"):
        driver = Driver(load(path))
        driver.add(seq(), list(range(2, 90)), greedy())
        outcomes.append(driver.finish(10))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architecture": "gpt2"}, "gpt2 is not supported; supported: llama"),
        ({"expert_count": 8}, "experts"),
        ({"rope_dimension_count": 4}, "rope.dimension_count 4"),
        ({"head_count_kv": [2, 1]}, "one value for each layer"),
        ({"head_count": 0}, "model.gguf: llama.attention.head_count must be an integer from 1, got 0"),
        ({"head_count_kv": 0}, "model.gguf: llama.attention.head_count_kv must be an integer from 1, got 0"),
        ({"head_count_kv": 4}, "model.gguf: llama.attention.head_count_kv 4 must divide the number of heads, 6"),
        ({"head_count": 16, "rope_dimension_count": 3}, "model.gguf: the size of a head must be even"),
        ({"context_length": 0}, "model.gguf: llama.context_length must be an integer from 1, got 0"),
        ({"freq_base": 0.0}, "model.gguf: llama.rope.freq_base must be a number above 0, got 0.0"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, make_llama(tmp_path), **changes)
    with pytest.raises(UnsupportedModel, match=words):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"head_count": 2, "rope_dimension_count": 24}, r"blk\.0\.attn_k\.weight|k_proj"),
        ({"head_count": 24, "head_count_kv": 6, "rope_dimension_count": 2}, "attn_k.weight"),
        ({"embedding_length": 60, "rope_dimension_count": 10}, "embed_tokens"),
        ({"rope_factors": np.ones(3, dtype=np.float32)}, "4 factors"),
    ],
    ids=str,
)
def test_weights_of_another_shape_than_configured_are_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, make_llama(tmp_path), **changes)
    with pytest.raises(UnsupportedModel, match=words) as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_the_suffix_may_be_in_capitals(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.GGUF", make_llama(tmp_path))
    assert load(tmp_path / "model.GGUF").model_config.vocab_size == VOCAB_SIZE


def test_missing_tensor_is_refused_by_name(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", make_llama(tmp_path))
    with pytest.raises(UnsupportedModel, match=r"blk\.7\.attn_q\.weight"):
        GGUFCheckpoint(tmp_path / "model.gguf").load("model.layers.7.self_attn.q_proj.weight", torch.float32)
