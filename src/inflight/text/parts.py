"""What a tokenizer is made of, wherever it was read from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tokenizers

from inflight.core.errors import InflightError
from inflight.core.request import TokenId


class UnsupportedTokenizer(InflightError):
    """A model's tokenizer is missing, malformed, or of a kind that inflight does not read."""


@dataclass(frozen=True)
class TokenizerParts:
    """The parts of a ``Tokenizer``; ``special_tokens`` maps names such as ``bos_token`` to the tokens' texts."""

    backend: tokenizers.Tokenizer
    eos_token_ids: tuple[TokenId, ...]
    prefix_token_ids: tuple[TokenId, ...] = ()  # put before a prompt, beside what the backend itself adds
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    chat_template: str | None = None


def check_token_ids(file: Path, key: str, token_ids: Sequence[object], vocab_size: int) -> None:
    """Raise ``UnsupportedTokenizer`` unless all are integers in ``[0, vocab_size)``."""
    for token_id in token_ids:
        if type(token_id) is not int or not 0 <= token_id < vocab_size:
            raise UnsupportedTokenizer(
                f"{file}: {key} must hold token ids, integers in [0, {vocab_size}), but holds {token_id!r}"
            )
