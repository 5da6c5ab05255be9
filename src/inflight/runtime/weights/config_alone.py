"""A ``config.json`` without its weights: enough to plan the memory of a model that is not here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from inflight.runtime.errors import UnsupportedModel
from inflight.runtime.models.base import ALL_ROWS
from inflight.runtime.models.llama_sizes import count_parameters
from inflight.runtime.weights.checks import flag
from inflight.runtime.weights.safetensors import read_config, read_json


class ConfigAlone:
    """See ``Checkpoint``: the facts, with parameters reckoned from them. Raises ``UnsupportedModel``.

    Its tensors cannot be read; each is said to come in 4-bit blocks, so that q4 can be planned.
    """

    def __init__(self, file: Path) -> None:
        settings: Mapping[str, object] = read_json(file)
        names = ("tie_word_embeddings", "attention_bias", "mlp_bias")
        tied, *biases = (flag(file, name, settings.get(name)) for name in names)
        config = read_config(file, dict(settings), tied, 0)
        self.config = replace(config, num_parameters=count_parameters(config, *biases))
        self._file = file

    def __contains__(self, name: str) -> bool:
        """There is none."""
        return False

    def shape(self, name: str) -> tuple[int, ...]:
        """Raise ``UnsupportedModel``."""
        self._refuse()

    def load(self, name: str, dtype: torch.dtype, rows: slice = ALL_ROWS) -> Tensor:
        """Raise ``UnsupportedModel``."""
        self._refuse()

    def has_blocks(self, name: str) -> bool:
        """Yes, of each."""
        return True

    def load_blocks(self, name: str) -> NoReturn:
        """Raise ``UnsupportedModel``."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise UnsupportedModel(f"{self._file} comes without weights")
