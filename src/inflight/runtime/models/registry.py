"""Architectures by name. A model is one file beside this one and one line here; it is imported when it is used."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import cast

import torch

from inflight.runtime.errors import UnsupportedModel
from inflight.runtime.models.base import Checkpoint, Model

MODELS: dict[str, tuple[str, str]] = {
    "LlamaForCausalLM": ("inflight.runtime.models.llama", "LlamaForCausalLM"),
}


def check_architecture(file: Path, architecture: str) -> None:
    """Raise ``UnsupportedModel`` for an architecture, read from ``file``, that is not here, naming those that are."""
    if architecture not in MODELS:
        raise UnsupportedModel(f"{file}: {architecture} is not supported; supported: {', '.join(sorted(MODELS))}")


def load_model(checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> Model:
    """Read the weights and build the model; its architecture is one of ``MODELS``. Raises ``UnsupportedModel``."""
    module, name = MODELS[checkpoint.config.architecture]
    return cast(Model, getattr(import_module(module), name)(checkpoint, dtype, device))
