"""Tokenizers from a folder as the Hugging Face hub lays it out: tokenizer.json and its companions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from inflight.core.request import TokenId
from inflight.text.parts import TokenizerParts, UnsupportedTokenizer, check_token_ids

_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def from_folder(folder: Path) -> TokenizerParts:
    """The parts of the tokenizer in ``folder``. Raises ``UnsupportedTokenizer``."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise UnsupportedTokenizer(
            f"{folder} has no tokenizer.json (a tokenizer.model alone is not read; transformers' save_pretrained "
            "writes tokenizer.json)"
        )
    try:
        backend = Tokenizer.from_str(file.read_text(encoding="utf-8"))
    except Exception as error:  # the library raises bare Exception
        raise UnsupportedTokenizer(f"{file} cannot be read: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    config = _read_json(folder / "tokenizer_config.json")
    special_tokens = _special_tokens({**_read_json(folder / "special_tokens_map.json"), **config})
    known = {name: text for name, text in special_tokens.items() if backend.token_to_id(text) is not None}
    backend.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in known.values()])
    return TokenizerParts(
        backend=backend,
        eos_token_ids=_eos_token_ids(folder, backend, known.get("eos_token")),
        special_tokens=known,
        chat_template=_chat_template(folder, config),
    )


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UnsupportedTokenizer(f"{file} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise UnsupportedTokenizer(f"{file} holds no JSON object")
    return content


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    texts = {}
    for name in _NAMED:
        value = config.get(name)
        text = value.get("content") if isinstance(value, Mapping) else value
        if isinstance(text, str) and text:
            texts[name] = text
    return texts


def _eos_token_ids(folder: Path, backend: Tokenizer, eos_token: str | None) -> tuple[TokenId, ...]:
    """The tokenizer's own end token, then those of generation_config.json, or of config.json where it names none."""
    vocab_size = 1 + max(backend.get_vocab(with_added_tokens=True).values(), default=-1)
    ends: list[TokenId] = []
    if eos_token is not None and (token_id := backend.token_to_id(eos_token)) is not None:
        ends.append(token_id)
    for name in ("generation_config.json", "config.json"):
        value = _read_json(folder / name).get("eos_token_id")
        if value is not None:
            ids = value if isinstance(value, list) else [value]
            check_token_ids(folder / name, "eos_token_id", ids, vocab_size)
            ends += ids
            break
    return tuple(dict.fromkeys(ends))


def _chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise UnsupportedTokenizer(f"{file} cannot be read: {error}") from error
    template = config.get("chat_template")
    if isinstance(template, list) and all(isinstance(entry, dict) for entry in template):  # several, by name
        template = next((entry.get("template") for entry in template if entry.get("name") == "default"), None)
    if template is not None and not isinstance(template, str):
        raise UnsupportedTokenizer(
            f"{folder / 'tokenizer_config.json'}: chat_template must be a string or a list of named templates, "
            f"got {str(template)[:80]}"
        )
    return template
