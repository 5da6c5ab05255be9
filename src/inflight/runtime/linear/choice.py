"""Which weight format a model runs in; see ``docs/decisions/0007-weight-formats.md`` for why."""

from __future__ import annotations

import torch

from inflight.native import NativeUnavailable, isa
from inflight.runtime.config import RuntimeConfig
from inflight.runtime.errors import UnsupportedModel
from inflight.runtime.kv import paged
from inflight.runtime.models.base import Checkpoint, ModelConfig
from inflight.runtime.models.registry import NATIVE_MODELS

DEFAULT = "int8"


def choose_quantization(config: RuntimeConfig, device: torch.device, checkpoint: Checkpoint) -> tuple[str, str]:
    """Return ``int8``, ``q4`` or ``none``, and a line for people that says why.

    Raises ``ValueError`` for a setting that cannot be had on this machine, ``UnsupportedModel`` for one that cannot be
    had of this model.
    """
    asked = config.quantization
    if asked == "none":
        return "none", "Kernels: torch, as configured"
    obstacle = _obstacle(config, device, checkpoint.config)
    if asked == "auto":
        if config.dtype != "auto":
            return "none", f"Kernels: torch, because dtype {config.dtype} was asked for"
        if obstacle is not None:
            return "none", f"Kernels: torch, because {obstacle}"
        if isa().name == "portable":
            return (
                "none",
                "Kernels: torch, because the native ones for this processor are portable code, which is slower",
            )
        asked = DEFAULT
    elif obstacle is not None:
        raise ValueError(f"quantization {asked}: {obstacle}")
    if config.dtype not in ("auto", "float32", "float"):
        raise ValueError(
            f"quantization {asked} computes in float32 beside its products, so dtype must not be {config.dtype}"
        )
    if asked == "q4" and not checkpoint.has_blocks("model.layers.0.mlp.down_proj.weight"):
        raise UnsupportedModel("q4 takes 4-bit blocks as a GGUF holds them (Q4_0, Q4_1), and this model has none")
    return asked, f"Kernels: native ({isa().name}), weights in {asked}"


def _obstacle(config: RuntimeConfig, device: torch.device, model: ModelConfig) -> str | None:
    """Why the native kernels cannot run the model here, if so."""
    if device.type != "cpu":
        return f"the native kernels run on the CPU, not on {device}"
    try:
        isa()
    except NativeUnavailable as error:
        return str(error)
    if model.architecture not in NATIVE_MODELS:
        return f"the native kernels do not know {model.architecture}"
    try:
        paged.block_bytes(model, config.block_size, config.kv_cache_dtype)
    except ValueError as error:
        return f"for the native kernels {error}"
    return None
