"""Tiny tokenizers, made on the spot, in each form that a model comes in."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from inflight.text.parts import TokenizerParts

SPECIAL = ("<s>", "</s>", "<|pad|>")
CORPUS = [
    "the cat sat on the mat, and the dog's bone wasn't there: they'll say it's 'ere",
    "for i in range(100):\n    total += values[i] * 12345\n\n\n    return total\n",
    "naïve café, Ünïcödé, 日本語の文, 😀😁 👨‍👩‍👧, русский текст, 1²³",
    "  spaces   and\ttabs \r\n 2024-01-01  THE END.  !!! ???",
]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


def byte_level_backend(vocab_size: int = 420) -> Tokenizer:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=alphabet, special_tokens=list(SPECIAL), show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def byte_level_parts() -> TokenizerParts:
    return TokenizerParts(byte_level_backend(), eos_token_ids=(1,))


def write_gguf(
    path: Path,
    extra: Mapping[str, Any] = {},
    kind: str = "gpt2",
    pre: str = "gpt-2",
    more_tokens: Mapping[str, int] = {},
) -> Path:
    """A llama GGUF that holds a tokenizer and a toy configuration, and no tensors.

    ``more_tokens`` come last, each with its type: 1 normal, 3 control, 4 user-defined.
    """
    model = json.loads(byte_level_backend().to_str())["model"]
    tokens = [token for token, _ in sorted(model["vocab"].items(), key=lambda item: item[1])]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(16)
    writer.add_block_count(1)
    writer.add_feed_forward_length(16)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    kinds = [3 if token in SPECIAL else 1 for token in tokens] + list(more_tokens.values())
    tokens += more_tokens
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model(kind)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for key, value in extra.items():
        (writer.add_bool if isinstance(value, bool) else writer.add_uint32)(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def write_folder(folder: Path, backend: Tokenizer, **files: Any) -> Path:
    """A folder with tokenizer.json, and each further ``name=content`` as name.json."""
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def sentencepiece_backend(words: Sequence[str] = ("▁the", "▁cat", "s", "▁", "日", "a", "b")) -> Tokenizer:
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    vocab = {token: rank for rank, token in enumerate(["<unk>", *SPECIAL, *byte_tokens, *words])}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return backend


def as_published(smollm: Any) -> Any:
    """SmolLM cuts at each digit, which transformers' reader of GGUF files does not know: put right in its tokenizer."""
    smollm.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    return smollm
