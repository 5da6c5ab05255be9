"""inflight: a language-model server whose subject is batching."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inflight.core.request import SamplingParams
    from inflight.llm import LLM

__all__ = ["LLM", "SamplingParams", "__version__"]
__version__ = "0.1.0"

_HOMES = {"LLM": "inflight.llm", "SamplingParams": "inflight.core.request"}


def __getattr__(name: str) -> object:
    # Imported on first use, so that ``import inflight`` does not load torch.
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
