"""Checkpoints in GGUF, the file format of llama.cpp: tensors of many formats, dequantised one by one as they are read.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, GGUFValueType, ReaderTensor, dequantize
from numpy.typing import NDArray
from torch import Tensor

from inflight.runtime.errors import UnsupportedModel
from inflight.runtime.models.base import ALL_ROWS, ModelConfig
from inflight.runtime.weights.checks import check_heads, positive, whole

ARCHITECTURES = {"llama": "LlamaForCausalLM"}
_TOP_LEVEL = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_IN_LAYER = {
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


class GGUFCheckpoint:
    """See ``Checkpoint``. The file is mapped into memory, not read. Raises ``UnsupportedModel``."""

    def __init__(self, path: Path) -> None:
        try:
            reader = _WithoutArrays(path)
        except (ValueError, KeyError, IndexError, OverflowError, struct.error) as error:
            raise UnsupportedModel(f"{path} is not a GGUF file that can be read: {error}") from error
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.config = _read_config(path, reader, self._tensors)

    def __contains__(self, name: str) -> bool:
        """Whether there is such a tensor."""
        return _gguf_name(name) in self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of one tensor."""
        return tuple(int(size) for size in reversed(self._find(name).shape))

    def load(self, name: str, dtype: torch.dtype, rows: slice = ALL_ROWS) -> Tensor:
        """Read and dequantise one tensor, or some of its rows."""
        tensor = self._find(name)
        try:
            values = dequantize(self._in_order(name, tensor.data)[rows], tensor.tensor_type)
        except NotImplementedError:
            kind = tensor.tensor_type.name
            raise UnsupportedModel(f"{tensor.name}: the format {kind} cannot be dequantised") from None
        # A float32 tensor is a view of the read-only mapping, which torch must own before it can be written to.
        return torch.from_numpy(values if values.flags.writeable else values.copy()).to(dtype)

    def has_blocks(self, name: str) -> bool:
        """Whether a tensor is in Q4_0 or Q4_1."""
        return self._find(name).tensor_type.name in ("Q4_0", "Q4_1")

    def load_blocks(self, name: str) -> tuple[str, NDArray[np.uint8]] | None:
        """Read the rows of a tensor in Q4_0 or Q4_1."""
        if not self.has_blocks(name):
            return None
        tensor = self._find(name)
        return tensor.tensor_type.name, self._in_order(name, tensor.data)

    def _find(self, name: str) -> ReaderTensor:
        tensor = self._tensors.get(_gguf_name(name))
        if tensor is None:
            raise UnsupportedModel(f"the GGUF file has no tensor {_gguf_name(name)}")
        return tensor

    def _in_order(self, name: str, rows: NDArray[Any]) -> NDArray[Any]:
        """Rows of numbers, or of blocks of them, in the order that the tensor's name promises."""
        if ".q_proj." in name:
            return _unpermute(_gguf_name(name), rows, self.config.num_attention_heads)
        if ".k_proj." in name:
            return _unpermute(_gguf_name(name), rows, self.config.num_key_value_heads)
        return rows


class _WithoutArrays(GGUFReader):
    """Steps over arrays of metadata: the vocabulary is not needed here, and its 100,000 strings take seconds."""

    def _get_field_parts(
        self, orig_offs: int, raw_type: int
    ) -> tuple[int, list[NDArray[Any]], list[int], list[GGUFValueType]]:
        if raw_type != GGUFValueType.ARRAY:
            parts: tuple[int, list[NDArray[Any]], list[int], list[GGUFValueType]]
            parts = super()._get_field_parts(orig_offs, raw_type)
            return parts
        data = self.data.data  # a memoryview: reading numpy elements one by one is slow
        kind, length = struct.unpack_from("<IQ", data, orig_offs)
        offset = orig_offs + 12
        if kind == GGUFValueType.STRING:
            for _ in range(length):
                offset += 8 + struct.unpack_from("<Q", data, offset)[0]
        elif kind in self.gguf_scalar_to_np:
            offset += length * np.dtype(self.gguf_scalar_to_np[GGUFValueType(kind)]).itemsize
        else:
            raise ValueError(f"an array of {kind} at byte {orig_offs}")
        return offset - orig_offs, [], [], [GGUFValueType.ARRAY]


def _unpermute(name: str, values: NDArray[Any], num_heads: int) -> NDArray[Any]:
    """Undo the conversion's order of rows: llama.cpp rotates neighbouring pairs, the names' owner two halves."""
    if values.shape[0] % (2 * num_heads):
        raise UnsupportedModel(f"{name}: {values.shape[0]} rows are not {num_heads} heads of an even size")
    pairs = values.reshape(num_heads, values.shape[0] // num_heads // 2, 2, *values.shape[1:])
    return pairs.swapaxes(1, 2).reshape(values.shape)


def _gguf_name(name: str) -> str:
    stem, _, suffix = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, index, part = stem.split(".", 3)
        return f"blk.{index}.{_IN_LAYER[part]}.{suffix}"
    return f"{_TOP_LEVEL[stem]}.{suffix}"


def _read_config(path: Path, reader: GGUFReader, tensors: dict[str, ReaderTensor]) -> ModelConfig:
    def get(key: str, default: Any = None) -> Any:
        field = reader.get_field(key)
        if field is None:
            return default
        if field.types[0] == GGUFValueType.ARRAY:
            raise UnsupportedModel(
                f"{path}: {key} is a list, one value for each layer; only one value for all is supported"
            )
        return field.contents()

    kind = get("general.architecture", "none")
    if kind not in ARCHITECTURES:
        raise UnsupportedModel(
            f"{path}: the architecture {kind} is not supported; supported: {', '.join(sorted(ARCHITECTURES))}"
        )

    def need(key: str) -> Any:
        value = get(f"{kind}.{key}")
        if value is None:
            raise UnsupportedModel(f"{path} lacks {kind}.{key}")
        return value

    def size(key: str, default: int | None = None) -> int:
        name = f"{kind}.{key}"
        return whole(path, name, need(key) if default is None else get(name, default))

    if get(f"{kind}.expert_count", 0):
        raise UnsupportedModel(f"{path}: mixtures of experts are not supported")
    embedding = tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2 or not embedding.n_elements:
        raise UnsupportedModel(f"{path} has no tensor token_embd.weight of two dimensions, neither of them 0")
    num_heads, hidden_size = size("attention.head_count"), size("embedding_length")
    num_kv_heads = size("attention.head_count_kv", num_heads)
    head_dim = size("attention.key_length", hidden_size // num_heads)
    check_heads(path, f"{kind}.attention.head_count_kv", num_heads, num_kv_heads, head_dim)
    for name, found in (
        ("rope.dimension_count", get(f"{kind}.rope.dimension_count", head_dim)),
        ("attention.value_length", get(f"{kind}.attention.value_length", head_dim)),
    ):
        if found != head_dim:
            raise UnsupportedModel(f"{path}: {kind}.{name} {found!r} must equal the size of a head, {head_dim}")
    if "rope_freqs.weight" in tensors:
        scaling: dict[str, Any] | None = {"rope_type": "factors", "factors": _rope_factors(tensors)}
    else:
        scaling = _rope_scaling(get(f"{kind}.rope.scaling.type", "none"), get(f"{kind}.rope.scaling.factor", 1.0))
    formats = Counter(tensor.tensor_type.name for tensor in tensors.values() if len(tensor.shape) > 1)
    return ModelConfig(
        architecture=ARCHITECTURES[kind],
        vocab_size=int(embedding.shape[1]),
        hidden_size=hidden_size,
        intermediate_size=size("feed_forward_length"),
        num_hidden_layers=size("block_count"),
        num_attention_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        head_dim=head_dim,
        max_position_embeddings=size("context_length"),
        rms_norm_eps=positive(
            path, f"{kind}.attention.layer_norm_rms_epsilon", need("attention.layer_norm_rms_epsilon")
        ),
        rope_theta=positive(path, f"{kind}.rope.freq_base", get(f"{kind}.rope.freq_base", 10000.0)),
        rope_scaling=scaling,
        tie_word_embeddings="output.weight" not in tensors,
        num_parameters=sum(tensor.n_elements for name, tensor in tensors.items() if name != "rope_freqs.weight"),
        weight_format=formats.most_common(1)[0][0],
    )


def _rope_factors(tensors: dict[str, ReaderTensor]) -> tuple[float, ...]:
    """Llama 3's rope scaling as llama.cpp stores it: a divisor for each frequency."""
    tensor = tensors["rope_freqs.weight"]
    return tuple(dequantize(tensor.data, tensor.tensor_type).reshape(-1).tolist())


def _rope_scaling(kind: str, factor: float) -> dict[str, Any] | None:
    return None if kind == "none" else {"rope_type": kind, "factor": factor}
