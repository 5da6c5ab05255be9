from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders

from inflight.core.errors import Reason, Rejected
from inflight.text.parts import TokenizerParts, UnsupportedTokenizer
from inflight.text.tokenizer import Tokenizer
from text.tiny import (
    CORPUS,
    as_published,
    byte_level_backend,
    byte_level_parts,
    sentencepiece_backend,
    write_folder,
    write_gguf,
)

SNIPPETS = [
    "<|im_end|>",
    "<|im_start|>user\n",
    "<s>",
    "  1",
    "\n\n 12",
    "'s 'LL",
    " \t",
    "日本語",
    "👨‍👩‍👧",
    "é",
    "\0",
    "²½",
]
texts = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.lists(st.one_of(st.sampled_from(SNIPPETS), st.text("ab 01\n.'é", max_size=4))).map("".join),
)


def transformers_tokenizer(folder: Path, **kwargs: Any) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, **kwargs)


@pytest.fixture(scope="module")
def tiny() -> Tokenizer:
    return Tokenizer(byte_level_parts())


def test_real_facts(tokenizer: Tokenizer) -> None:
    assert tokenizer.vocab_size == 49_152
    assert tokenizer.eos_token_ids == (2,)
    assert tokenizer.special_token_ids == frozenset(range(17))


@settings(max_examples=1000, deadline=None)
@given(text=texts)
def test_real_ids_equal_transformers(tokenizer: Tokenizer, reference: Any, text: str) -> None:
    assert tokenizer.encode(text) == reference(text)["input_ids"]
    assert tokenizer.encode(text, add_special_tokens=False) == reference.encode(text, add_special_tokens=False)


@settings(max_examples=500, deadline=None)
@given(ids=st.lists(st.one_of(st.integers(0, 300), st.integers(0, 49_151))), skip=st.booleans())
def test_real_decode_equals_transformers(tokenizer: Tokenizer, reference: Any, ids: list[int], skip: bool) -> None:
    assert tokenizer.decode(ids, skip) == reference.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("pre", ["gpt-2", "default", "smollm", "llama-bpe", "qwen2"])
@pytest.mark.parametrize("add_bos", [True, False])
def test_tiny_gguf_equals_transformers(tmp_path: Path, pre: str, add_bos: bool) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", {"tokenizer.ggml.add_bos_token": add_bos}, pre=pre)
    ours, theirs = Tokenizer.load(path), transformers_tokenizer(tmp_path, gguf_file=path.name)
    if pre == "smollm":
        theirs = as_published(theirs)

    @settings(max_examples=200, deadline=None)
    @given(text=st.one_of(texts, st.sampled_from(CORPUS)), special=st.booleans())
    def check(text: str, special: bool) -> None:
        assert ours.encode(text, special) == theirs.encode(text, add_special_tokens=special)

    check()
    assert ours.encode("a")[0] == (0 if add_bos else ours.encode("a", add_special_tokens=False)[0])


def test_a_digit_stands_alone_whatever_is_before_it(tokenizer: Tokenizer) -> None:
    """The smallest text on which the cut at digits shows: both newlines are one token."""
    newlines, one = tokenizer.encode("\n\n1")
    assert [newlines, one] == [*tokenizer.encode("\n\n"), *tokenizer.encode("1")]


def test_user_defined_tokens_are_whole_and_not_special(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", more_tokens={"<think>": 4, "<|call|>": 3})
    ours, theirs = Tokenizer.load(path), transformers_tokenizer(tmp_path, gguf_file=path.name)
    ids = ours.encode("a<think>b<|call|>")
    assert ids == theirs.encode("a<think>b<|call|>")
    assert len(ids) == 4
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True) == "a<think>b"


@pytest.mark.parametrize(("pre", "num_tokens"), [("gpt-2", 3), ("qwen2", 3), ("llama-bpe", 1)])
def test_llama_3_takes_a_word_of_the_vocabulary_without_merging(tmp_path: Path, pre: str, num_tokens: int) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", pre=pre, more_tokens={"zqx": 1})
    assert len(Tokenizer.load(path).encode("zqx", add_special_tokens=False)) == num_tokens


def test_llama_3_begins_with_bos_unless_told_otherwise(tmp_path: Path) -> None:
    assert Tokenizer.load(write_gguf(tmp_path / "a.gguf", pre="llama-bpe")).encode("a")[0] == 0
    assert Tokenizer.load(write_gguf(tmp_path / "b.gguf", pre="gpt-2")).encode("a")[0] != 0


def test_end_tokens_of_a_gguf(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", {"tokenizer.ggml.eot_token_id": 2})
    assert Tokenizer.load(path).eos_token_ids == (1, 2)


@pytest.mark.parametrize("eos_in_config", [1, [1, 2]])
def test_folder_equals_transformers(tmp_path: Path, eos_in_config: int | list[int]) -> None:
    config = {
        "bos_token": "<s>",
        "eos_token": {"__type": "AddedToken", "content": "</s>"},
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    backend = byte_level_backend()
    backend.enable_truncation(4)
    write_folder(
        tmp_path, backend, tokenizer_config=config, generation_config={"eos_token_id": eos_in_config},
        config={"eos_token_id": 0, "model_type": "llama"},
    )  # fmt: skip
    ours, theirs = Tokenizer.load(tmp_path), transformers_tokenizer(tmp_path)
    assert ours.eos_token_ids == ((1,) if eos_in_config == 1 else (1, 2))
    for text in [*CORPUS, "<s>a</s>", ""]:
        ids = ours.encode(text)
        assert ids == theirs.encode(text, truncation=False)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_folder_with_a_sentencepiece_tokenizer(tmp_path: Path) -> None:
    backend = sentencepiece_backend()
    ours = Tokenizer.load(write_folder(tmp_path, backend, config={"eos_token_id": 2}))
    assert ours.eos_token_ids == (2,)
    for ids in [
        [4 + 0xE6, 4 + 0x97, 4 + 0xA5],
        backend.encode("the cats 日 😀").ids,
        [260, 261, 1, 263, 262],
        [1, 260],
    ]:
        for skip in (True, False):
            assert ours.decode(ids, skip) == backend.decode(ids, skip_special_tokens=skip)
    assert ours.decode(ours.encode("a  b")) == "a  b"


@given(ids=st.lists(st.integers(0, 419)))
def test_joined_token_bytes_are_the_text(tiny: Tokenizer, ids: list[int]) -> None:
    joined = b"".join(map(tiny.token_bytes, ids))
    assert joined.decode("utf-8", "replace") == tiny.decode(ids, skip_special_tokens=False)


@given(text=texts)
def test_token_bytes_of_a_text_are_its_utf8(tiny: Tokenizer, text: str) -> None:
    ids = tiny.encode(text, add_special_tokens=False)
    assert b"".join(map(tiny.token_bytes, ids)) == text.encode("utf-8")


@given(text=st.text(st.characters()))
def test_encode_raises_nothing_but_rejected(tiny: Tokenizer, text: str) -> None:
    has_surrogate = any("\ud800" <= character <= "\udfff" for character in text)
    if not has_surrogate:
        tiny.encode(text)
        return
    with pytest.raises(Rejected, match="lone surrogate") as caught:
        tiny.encode(text)
    assert caught.value.reason is Reason.INVALID


@pytest.mark.parametrize("token_id", [-1, 10**6, 2**70])
def test_ids_outside_the_vocabulary(tiny: Tokenizer, token_id: int) -> None:
    assert tiny.token_bytes(token_id) == b""
    with pytest.raises(Rejected, match="outside the vocabulary"):
        tiny.decode([token_id])


def test_several_threads(tiny: Tokenizer) -> None:
    pieces = [f"{text} {number}" for number in range(200) for text in CORPUS]
    alone = [tiny.encode(piece) for piece in pieces]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(tiny.encode, pieces)) == alone


def empty_folder(folder: Path) -> Path:
    return folder


def broken_json(folder: Path) -> Path:
    (folder / "tokenizer.json").write_text("{")
    return folder


def broken_config(folder: Path) -> Path:
    write_folder(folder, byte_level_backend())
    (folder / "tokenizer_config.json").write_text("[1]")
    return folder


def not_gguf(folder: Path) -> Path:
    (folder / "x.gguf").write_bytes(b"GGML" * 100)
    return folder / "x.gguf"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (empty_folder, "has no tokenizer.json"),
        (broken_json, "cannot be read"),
        (broken_config, "holds no JSON object"),
        (not_gguf, "is not a GGUF file"),
        (lambda folder: folder / "absent.gguf", "No such file"),
        (lambda folder: write_gguf(folder / "a.gguf", pre="newest"), "scheme 'newest', which is not known"),
        (lambda folder: write_gguf(folder / "a.gguf", kind="llama"), "tokenizer of kind 'llama'"),
        (lambda folder: write_gguf(folder / "a.gguf", {"tokenizer.ggml.unknown_token_id": 10**6}), "unknown_token_id"),
    ],
)
def test_what_cannot_be_read_says_why(tmp_path: Path, make: Callable[[Path], Path], words: str) -> None:
    with pytest.raises(UnsupportedTokenizer, match=words):
        Tokenizer.load(make(tmp_path))


@pytest.mark.parametrize("value", ["</s>", 1.0, True, {}, -1, 420, 10**30, [1, "</s>"], [[1]], [1, 420]], ids=str)
@pytest.mark.parametrize("name", ["generation_config", "config"])
def test_end_tokens_that_are_none_are_refused_by_file(tmp_path: Path, name: str, value: Any) -> None:
    write_folder(tmp_path, byte_level_backend(), **{name: {"eos_token_id": value}})
    with pytest.raises(UnsupportedTokenizer, match=rf"/{name}\.json: eos_token_id must hold .* in \[0, 420\)"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("key", ["bos", "eos", "eot", "eom", "padding"])
def test_a_gguf_with_a_token_id_outside_the_vocabulary_is_refused(tmp_path: Path, key: str) -> None:
    name = f"tokenizer.ggml.{key}_token_id"
    path = tmp_path / "tiny.gguf"
    with pytest.raises(UnsupportedTokenizer, match=rf"tiny\.gguf: {name} must hold .* but holds 420"):
        Tokenizer.load(write_gguf(path, {name: 420}))


@pytest.mark.parametrize("template", [[1, 2], 3, {"a": "b"}, [{"name": "default", "template": 1}]], ids=str)
def test_a_chat_template_of_another_type_is_refused(tmp_path: Path, template: Any) -> None:
    write_folder(tmp_path, byte_level_backend(), tokenizer_config={"chat_template": template})
    with pytest.raises(UnsupportedTokenizer, match=r"tokenizer_config\.json: chat_template must be"):
        Tokenizer.load(tmp_path)


def test_a_chat_template_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path, byte_level_backend())
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(UnsupportedTokenizer, match=r"chat_template\.jinja cannot be read"):
        Tokenizer.load(tmp_path)


def test_the_suffix_of_a_gguf_may_be_in_capitals(tmp_path: Path) -> None:
    assert Tokenizer.load(write_gguf(tmp_path / "tiny.GGUF")).eos_token_ids == (1,)


@pytest.mark.parametrize("decoder", [None, decoders.WordPiece(), decoders.Sequence([decoders.Replace("x", "y")])])
def test_unknown_decoder(decoder: Any) -> None:
    backend = byte_level_backend()
    backend.decoder = decoder
    with pytest.raises(UnsupportedTokenizer, match="decoder"):
        Tokenizer(TokenizerParts(backend, eos_token_ids=()))
