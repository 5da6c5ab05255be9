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
from inflight.runtime.models.base import ModelConfig
from inflight.runtime.models.registry import check_architecture

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_NOT_PARAMETERS = ("rotary_emb.inv_freq",)  # old checkpoints hold these buffers


class SafetensorsCheckpoint:
    """See ``Checkpoint``. Files are mapped into memory, not read. Raises ``UnsupportedModel``."""

    def __init__(self, folder: Path) -> None:
        settings = _read_json(folder / "config.json")
        if (folder / INDEX).exists():
            names = set(_read_json(folder / INDEX).get("weight_map", {}).values())
        elif (folder / SINGLE).exists():
            names = {SINGLE}
        else:
            raise UnsupportedModel(f"{folder} holds neither {SINGLE} nor {INDEX}")
        try:
            files: list[Any] = [safe_open(folder / name, framework="pt") for name in sorted(names)]
        except (SafetensorError, OSError) as error:
            raise UnsupportedModel(f"the weights in {folder} cannot be read: {error}") from error
        self._files = {name: file for file in files for name in file.keys()}  # noqa: SIM118, not a mapping
        tied = bool(settings.get("tie_word_embeddings", False)) or "lm_head.weight" not in self._files
        num_parameters = sum(
            math.prod(file.get_slice(name).get_shape())
            for name, file in self._files.items()
            if not name.endswith(_NOT_PARAMETERS) and not (tied and name == "lm_head.weight")
        )
        self.config = _read_config(settings, tied, num_parameters)

    def __contains__(self, name: str) -> bool:
        """Whether there is such a tensor."""
        return name in self._files

    def load(self, name: str, dtype: torch.dtype) -> Tensor:
        """Read one tensor."""
        if name not in self._files:
            raise UnsupportedModel(f"the checkpoint has no tensor {name}")
        tensor: Tensor = self._files[name].get_tensor(name)
        return tensor.to(dtype)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnsupportedModel(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise UnsupportedModel(f"{path} does not hold a JSON object")
    return content


def _read_config(settings: dict[str, Any], tied: bool, num_parameters: int) -> ModelConfig:
    architecture = (settings.get("architectures") or ["none"])[0]
    check_architecture(architecture)
    if settings.get("quantization_config"):
        raise UnsupportedModel("quantised safetensors are not supported; float32, float16 and bfloat16 are")
    if settings.get("hidden_act", "silu") != "silu":
        raise UnsupportedModel(f"the activation {settings['hidden_act']} is not supported; supported: silu")
    # Transformers 5 joins rope_theta and rope_scaling as rope_parameters.
    rope = dict(settings.get("rope_parameters") or settings.get("rope_scaling") or {})
    rope["rope_type"] = rope.get("rope_type") or rope.pop("type", "default")
    if float(rope.get("partial_rotary_factor", settings.get("partial_rotary_factor", 1.0))) != 1.0:
        raise UnsupportedModel("partial rotary embeddings are not supported")
    try:
        num_heads = int(settings["num_attention_heads"])
        return ModelConfig(
            architecture=architecture,
            vocab_size=int(settings["vocab_size"]),
            hidden_size=int(settings["hidden_size"]),
            intermediate_size=int(settings["intermediate_size"]),
            num_hidden_layers=int(settings["num_hidden_layers"]),
            num_attention_heads=num_heads,
            num_key_value_heads=int(settings.get("num_key_value_heads") or num_heads),
            head_dim=int(settings.get("head_dim") or settings["hidden_size"] // num_heads),
            max_position_embeddings=int(settings["max_position_embeddings"]),
            rms_norm_eps=float(settings.get("rms_norm_eps", 1e-6)),
            rope_theta=float(rope.get("rope_theta", settings.get("rope_theta", 10000.0))),
            rope_scaling=None if rope["rope_type"] == "default" else rope,
            tie_word_embeddings=tied,
            num_parameters=num_parameters,
            weight_format=str(settings.get("dtype") or settings.get("torch_dtype") or "float32"),
        )
    except KeyError as missing:
        raise UnsupportedModel(f"config.json lacks {missing}") from None
