"""Checkpoints as Hugging Face writes them: a folder with ``config.json`` and one or more ``.safetensors`` files."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from inflight.runtime.errors import UnsupportedModel
from inflight.runtime.models.base import ALL_ROWS, ModelConfig
from inflight.runtime.models.registry import check_architecture
from inflight.runtime.weights.checks import MOST, MOST_LAYERS, check_heads, flag, positive, whole

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_NOT_PARAMETERS = ("rotary_emb.inv_freq",)  # old checkpoints hold these buffers


class SafetensorsCheckpoint:
    """See ``Checkpoint``. Files are mapped into memory, not read. Raises ``UnsupportedModel``."""

    def __init__(self, folder: Path) -> None:
        settings = read_json(folder / "config.json")
        if (folder / INDEX).exists():
            names = _shards(folder / INDEX)
        elif (folder / SINGLE).exists():
            names = {SINGLE}
        else:
            raise UnsupportedModel(f"{folder} holds neither {SINGLE} nor {INDEX}")
        try:
            files: list[Any] = [safe_open(folder / name, framework="pt") for name in sorted(names)]
        except (SafetensorError, OSError) as error:
            raise UnsupportedModel(f"the weights in {folder} cannot be read: {error}") from error
        self._files = {name: file for file in files for name in file.keys()}  # noqa: SIM118, not a mapping
        tied = flag(folder / "config.json", "tie_word_embeddings", settings.get("tie_word_embeddings"))
        tied = tied or "lm_head.weight" not in self._files
        num_parameters = sum(
            math.prod(file.get_slice(name).get_shape())
            for name, file in self._files.items()
            if not name.endswith(_NOT_PARAMETERS) and not (tied and name == "lm_head.weight")
        )
        self.config = read_config(folder / "config.json", settings, tied, num_parameters)

    def __contains__(self, name: str) -> bool:
        """Whether there is such a tensor."""
        return name in self._files

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of one tensor."""
        return tuple(self._find(name).get_shape())

    def load(self, name: str, dtype: torch.dtype, rows: slice = ALL_ROWS) -> Tensor:
        """Read one tensor, or some of its rows."""
        tensor: Tensor = self._find(name)[rows]
        return tensor.to(dtype)

    def _find(self, name: str) -> Any:
        if name not in self._files:
            raise UnsupportedModel(f"the checkpoint has no tensor {name}")
        return self._files[name].get_slice(name)

    def has_blocks(self, name: str) -> bool:
        """There are none in this format."""
        return False

    def load_blocks(self, name: str) -> None:
        """There are no 4-bit blocks in this format."""


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises ``UnsupportedModel``."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UnsupportedModel(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise UnsupportedModel(f"{path} does not hold a JSON object")
    return content


def _shards(index: Path) -> set[str]:
    """The files that the index names."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise UnsupportedModel(f"{index}: weight_map must be an object of file names, got {str(weight_map)[:80]}")
    return set(weight_map.values())


def read_config(file: Path, settings: dict[str, Any], tied: bool, num_parameters: int) -> ModelConfig:
    """The facts in ``settings``, the content of ``file``, a ``config.json``. Raises ``UnsupportedModel``."""
    architectures = settings.get("architectures") or ["none"]
    if not isinstance(architectures, list) or not isinstance(architectures[0], str):
        raise UnsupportedModel(f"{file}: architectures must be a list of names, got {architectures!r}")
    architecture = architectures[0]
    check_architecture(file, architecture)
    if settings.get("quantization_config"):
        raise UnsupportedModel(f"{file}: quantised safetensors are not supported; float32, float16 and bfloat16 are")
    if settings.get("hidden_act", "silu") != "silu":
        raise UnsupportedModel(f"{file}: the activation {settings['hidden_act']} is not supported; supported: silu")
    # Transformers 5 joins rope_theta and rope_scaling as rope_parameters.
    rope_key = "rope_parameters" if settings.get("rope_parameters") else "rope_scaling"
    given = settings.get(rope_key) or {}
    if not isinstance(given, dict):
        raise UnsupportedModel(f"{file}: {rope_key} must be an object, got {given!r}")
    rope = dict(given)
    rope["rope_type"] = rope.get("rope_type") or rope.pop("type", "default")
    if rope.get("partial_rotary_factor", settings.get("partial_rotary_factor", 1.0)) != 1.0:
        raise UnsupportedModel(f"{file}: partial rotary embeddings are not supported")

    def size(key: str, default: int | None = None, most: int = MOST) -> int:
        value = settings.get(key)
        if value is None and default is None:
            raise UnsupportedModel(f"{file} lacks {key}")
        return whole(file, key, default if value is None else value, most)

    hidden_size, num_heads = size("hidden_size"), size("num_attention_heads")
    num_kv_heads = size("num_key_value_heads", num_heads)
    head_dim = size("head_dim", hidden_size // num_heads)
    check_heads(file, "num_key_value_heads", num_heads, num_kv_heads, head_dim)
    return ModelConfig(
        architecture=architecture,
        vocab_size=size("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=size("intermediate_size"),
        num_hidden_layers=size("num_hidden_layers", most=MOST_LAYERS),
        num_attention_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        head_dim=head_dim,
        max_position_embeddings=size("max_position_embeddings"),
        rms_norm_eps=positive(file, "rms_norm_eps", settings.get("rms_norm_eps", 1e-6)),
        rope_theta=positive(file, "rope_theta", rope.get("rope_theta", settings.get("rope_theta", 10000.0))),
        rope_scaling=None if rope["rope_type"] == "default" else rope,
        tie_word_embeddings=tied,
        num_parameters=num_parameters,
        weight_format=str(settings.get("dtype") or settings.get("torch_dtype") or "float32"),
    )
