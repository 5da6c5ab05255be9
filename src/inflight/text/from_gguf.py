"""Byte-level BPE tokenizers from the metadata of a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from inflight.text.gguf_metadata import read_gguf_metadata
from inflight.text.parts import TokenizerParts, UnsupportedTokenizer, check_token_ids

# How text is cut before merging, by the published tokenizer.json of the family that gave the scheme its name.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_WORD}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_WORD}|\p{{N}}|{_REST}"
_SPLITS = {  # applied one after the other
    "default": (_GPT2,),
    "gpt-2": (_GPT2,),
    # As the model was trained. transformers' GGUF reader leaves the cut at each digit out, so that two or more spaces
    # or newlines before a digit come out differently there.
    "smollm": (r"\p{N}", _GPT2),
    "llama-bpe": (_LLAMA3,),
    "llama3": (_LLAMA3,),
    "llama-v3": (_LLAMA3,),
    "qwen2": (_QWEN2,),
    "deepseek-r1-qwen": (_QWEN2,),
}
_CONTROL, _USER_DEFINED = 3, 4  # values of tokenizer.ggml.token_type
_ID_KEYS = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
_END_KEYS = ("eos", "eot", "eom")


def from_gguf(path: Path) -> TokenizerParts:
    """The parts of the tokenizer in a GGUF file. Raises ``UnsupportedTokenizer``."""
    try:
        metadata = read_gguf_metadata(path)
    except (ValueError, OSError) as error:
        raise UnsupportedTokenizer(str(error)) from error
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise UnsupportedTokenizer(
            f"{path} holds a tokenizer of kind {kind!r}; of GGUF files only byte-level BPE ('gpt2') is read. "
            "A folder with the model's tokenizer.json works for the other kinds"
        )
    try:
        return _parts(path, metadata)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise UnsupportedTokenizer(f"{path} holds a damaged tokenizer: {error!r}") from error


def _parts(path: Path, metadata: Mapping[str, Any]) -> TokenizerParts:
    scheme = metadata.get("tokenizer.ggml.pre", "default")
    if scheme not in _SPLITS:
        known = ", ".join(sorted(_SPLITS))
        raise UnsupportedTokenizer(f"{path} cuts text by the scheme {scheme!r}, which is not known; known are {known}")
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    is_llama3 = _LLAMA3 in _SPLITS[scheme]
    ids = {
        name: metadata[f"tokenizer.ggml.{key}_token_id"]
        for name, key in _ID_KEYS.items()
        if f"tokenizer.ggml.{key}_token_id" in metadata
    }
    ends = []
    for key in dict.fromkeys((*_END_KEYS, *_ID_KEYS.values())):
        name = f"tokenizer.ggml.{key}_token_id"
        if name in metadata:
            check_token_ids(path, name, [metadata[name]], len(tokens))
            if key in _END_KEYS:
                ends.append(metadata[name])
    chat_template = metadata.get("tokenizer.chat_template")
    if chat_template is not None and not isinstance(chat_template, str):
        raise UnsupportedTokenizer(f"{path}: tokenizer.chat_template must be a string, got {str(chat_template)[:80]}")
    # Llama 3 files need not carry the flag: llama.cpp takes it as set for them.
    adds_bos = metadata.get("tokenizer.ggml.add_bos_token", is_llama3) and "bos_token" in ids
    return TokenizerParts(
        backend=_backend(tokens, metadata, _SPLITS[scheme], ignore_merges=is_llama3),
        eos_token_ids=tuple(dict.fromkeys(ends)),
        prefix_token_ids=(ids["bos_token"],) if adds_bos else (),
        special_tokens={name: tokens[token_id] for name, token_id in ids.items()},
        chat_template=chat_template,
    )


def _backend(tokens: list[str], metadata: Mapping[str, Any], splits: tuple[str, ...], ignore_merges: bool) -> Tokenizer:
    merges = [_pair(merge) for merge in metadata["tokenizer.ggml.merges"]]
    try:
        model = models.BPE(
            vocab={token: token_id for token_id, token in enumerate(tokens)},
            merges=merges,
            ignore_merges=ignore_merges,
        )
    except Exception as error:  # the library raises bare Exception for a merge of unknown tokens
        raise ValueError(str(error)) from error
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(split), behavior="isolated") for split in splits),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    kinds = metadata.get("tokenizer.ggml.token_type", ())
    for kind, is_special in ((_CONTROL, True), (_USER_DEFINED, False)):
        whole = [token for token, token_kind in zip(tokens, kinds, strict=False) if token_kind == kind]
        backend.add_tokens([AddedToken(token, normalized=False, special=is_special) for token in whole])
    return backend


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right
