"""Architectures by name. A model is one file beside this one and one line here; it is imported when it is used."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import cast

import torch

from inflight.native import kernels
from inflight.runtime.errors import UnsupportedModel
from inflight.runtime.models.base import Checkpoint, Model

# (checkpoint, quantization, program, kv) -> buffers of logits and of likeliest tokens
NativeBuilder = Callable[
    [Checkpoint, str, "kernels.ForwardPass", "kernels.KVCache"], tuple["kernels.Buffer", "kernels.Buffer"]
]

_Class = tuple[str, str]  # module, name in it

MODELS: dict[str, _Class] = {
    "LlamaForCausalLM": ("inflight.runtime.models.llama", "LlamaForCausalLM"),
}
NATIVE_MODELS: dict[str, _Class] = {  # those that the native kernels can run
    "LlamaForCausalLM": ("inflight.runtime.models.llama_native", "build_llama"),
}


def check_architecture(file: Path, architecture: str) -> None:
    """Raise ``UnsupportedModel`` for an architecture, read from ``file``, that is not here, naming those that are."""
    if architecture not in MODELS:
        raise UnsupportedModel(f"{file}: {architecture} is not supported; supported: {', '.join(sorted(MODELS))}")


def load_model(checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> Model:
    """Read the weights and build the model; its architecture is one of ``MODELS``. Raises ``UnsupportedModel``."""
    module, name = MODELS[checkpoint.config.architecture]
    return cast(Model, getattr(import_module(module), name)(checkpoint, dtype, device))


def native_builder(architecture: str) -> NativeBuilder:
    """Return what appends the operations of one of ``NATIVE_MODELS`` to a program of native kernels."""
    module, name = NATIVE_MODELS[architecture]
    return cast(NativeBuilder, getattr(import_module(module), name))
