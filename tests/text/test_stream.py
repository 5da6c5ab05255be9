import re
from dataclasses import dataclass
from itertools import chain, pairwise

from hypothesis import event, given, settings
from hypothesis import strategies as st

from inflight.core.output import Stop
from inflight.core.request import MAX_STOP_CHARS, SamplingParams
from inflight.text.parts import TokenizerParts
from inflight.text.stop_strings import StopMatcher
from inflight.text.stream import TextStream
from inflight.text.tokenizer import Tokenizer
from text.tiny import byte_level_parts, sentencepiece_backend

BYTE_LEVEL = Tokenizer(byte_level_parts())
SENTENCEPIECE = Tokenizer(TokenizerParts(sentencepiece_backend(), eos_token_ids=()))


@dataclass(frozen=True)
class Expected:
    text: str
    token: int | None = None  # which token completed the stop, counted from 1
    stop: str | None = None


def num_undecided_bytes(data: bytes) -> int:
    """The length of the end of ``data`` that may still become a character."""
    if re.search(rb"\xed[\xa0-\xbf]\Z", data):  # half of a surrogate pair: CPython's decoder waits for the third byte
        return 2
    for length in (1, 2, 3):
        try:
            data[len(data) - length :].decode("utf-8")
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data" and error.start == 0:
                return length
    return 0


def settled_length(tokenizer: Tokenizer, ids: list[int], skip: bool) -> int:
    """Characters of the text of ``ids`` that no further token can change."""
    skipped = tokenizer.special_token_ids if skip else frozenset()
    data = b"".join(tokenizer.token_bytes(i) for i in ids if i not in skipped)
    data = data[: len(data) - num_undecided_bytes(data)]
    text = data.decode("utf-8", "replace")
    return len(text) - (tokenizer.drops_leading_space and text.startswith(" "))


def expected(tokenizer: Tokenizer, ids: list[int], sampling: SamplingParams) -> Expected:
    """The law, by brute force over the whole text."""
    skip = sampling.skip_special_tokens
    text = tokenizer.decode(ids, skip)
    settled = [settled_length(tokenizer, ids[:count], skip) for count in range(len(ids) + 1)]
    found = []
    for rank, stop in enumerate(sampling.stop):
        for start in (match.start() for match in re.finditer(f"(?={re.escape(stop)})", text)):
            end = start + len(stop)
            token = next((count for count, length in enumerate(settled) if length >= end), None)
            num_tokens = len(ids) if token is None else token
            if num_tokens >= sampling.min_tokens:
                found.append((end, start, rank, token))
    if not found:
        return Expected(text)
    end, start, rank, token = min(found, key=lambda hit: hit[:3])
    cut = end if sampling.include_stop_str_in_output else start
    return Expected(text[:cut], token, sampling.stop[rank] if token is not None else None)


def streamed(tokenizer: Tokenizer, ids: list[int], sampling: SamplingParams, cuts: list[int]) -> Expected:
    stream = TextStream(tokenizer, sampling)
    texts, token, stopped = [], None, None
    borders = sorted({min(cut, len(ids)) for cut in cuts} | {0, len(ids)})
    for start, end in pairwise(borders):
        stop = stream.push(ids[start:end])
        if stop is not None:
            assert stopped is None, "a second stop"
            token, stopped = start + stop.num_tokens, stop.stop
        texts.append(stream.take(final=False))
    texts.append(stream.take(final=True))
    assert stream.take(final=True) == ""
    return Expected("".join(texts), token, stopped)


def ids_of(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    """Real text cut into bytes, whole tokens, and noise: broken characters, special tokens, anything."""
    single = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size)}
    as_bytes = st.text("ab é日😀\ufffd", max_size=6).map(lambda text: [single[bytes([b])] for b in text.encode()])
    as_tokens = st.text("ab the cat日").map(lambda text: tokenizer.encode(text, add_special_tokens=False))
    lead = st.sampled_from([[single[bytes([b])]] for b in (0xF0, 0x9F, 0x98, 0xE6, 0xC3, 0xFF, 0xED, 0xA0)])
    special = st.sampled_from([[0], [1], [2]])
    anything = st.integers(0, tokenizer.vocab_size - 1).map(lambda i: [i])
    return st.lists(st.one_of(as_bytes, as_tokens, lead, special, anything), max_size=8).map(
        lambda parts: list(chain.from_iterable(parts))
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[Tokenizer, list[int], SamplingParams, list[int]]:
    tokenizer = draw(st.sampled_from([BYTE_LEVEL, SENTENCEPIECE]))
    ids = draw(ids_of(tokenizer))
    skip = draw(st.booleans())
    text = tokenizer.decode(ids, skip)
    spans = st.tuples(st.integers(0, len(text)), st.integers(1, 6)).map(lambda at: text[at[0] : at[0] + at[1]])
    stops = st.lists(st.one_of(spans, st.text("ab é日😀\ufffd", max_size=4)).filter(bool), max_size=4)
    sampling = SamplingParams(
        max_tokens=None,
        stop=draw(stops),
        min_tokens=draw(st.integers(0, len(ids) + 1)),
        include_stop_str_in_output=draw(st.booleans()),
        skip_special_tokens=skip,
    )
    return tokenizer, ids, sampling, draw(st.lists(st.integers(0, 40), max_size=20))


@settings(max_examples=1500, deadline=None)
@given(case=cases())
def test_the_law_whatever_the_split(case: tuple[Tokenizer, list[int], SamplingParams, list[int]]) -> None:
    tokenizer, ids, sampling, cuts = case
    want = expected(tokenizer, ids, sampling)
    event("stopped" if want.stop else "ran to its end")
    assert streamed(tokenizer, ids, sampling, cuts) == want
    assert streamed(tokenizer, ids, sampling, list(range(len(ids)))) == want


@settings(max_examples=500, deadline=None)
@given(case=cases())
def test_holds_back_no_more_than_it_must(case: tuple[Tokenizer, list[int], SamplingParams, list[int]]) -> None:
    tokenizer, ids, sampling, _ = case
    stream = TextStream(tokenizer, sampling)
    text = ""
    for count, token_id in enumerate(ids, start=1):
        if stream.push([token_id]) is not None:
            break
        text += stream.take(final=False)
        whole = tokenizer.decode(ids[:count], sampling.skip_special_tokens)
        whole = whole[: settled_length(tokenizer, ids[:count], sampling.skip_special_tokens)]
        assert whole.startswith(text)
        held = whole[len(text) :]
        begins = {stop[:length] for stop in sampling.stop for length in range(1, len(stop))}
        longest = max((begin for begin in begins if whole.endswith(begin)), key=len, default="")
        assert held == ("" if sampling.include_stop_str_in_output else longest)


def ids_of_bytes(data: bytes) -> list[int]:
    single = {BYTE_LEVEL.token_bytes(i): i for i in range(BYTE_LEVEL.vocab_size)}
    return [single[bytes([byte])] for byte in data]


def test_an_emoji_comes_whole() -> None:
    stream = TextStream(BYTE_LEVEL, SamplingParams())
    texts = []
    for token_id in ids_of_bytes("a😀".encode()):
        stream.push([token_id])
        texts.append(stream.take(final=False))
    assert texts == ["a", "", "", "", "😀"]


def test_a_half_emoji_at_the_end_is_replaced() -> None:
    stream = TextStream(BYTE_LEVEL, SamplingParams())
    stream.push(ids_of_bytes("a😀".encode()[:-1]))
    assert stream.take(final=False) == "a"
    assert stream.take(final=True) == "\ufffd"


def test_the_stop_says_which_token_of_the_push() -> None:
    stream = TextStream(BYTE_LEVEL, SamplingParams(stop=("END",)))
    assert stream.push(ids_of_bytes(b"fin: E")) is None
    assert stream.take(final=False) == "fin: "
    assert stream.push(ids_of_bytes(b"ND and more")) == Stop(2, "END")
    assert stream.push(ids_of_bytes(b"END")) is None
    assert stream.take(final=True) == ""


def test_of_two_completed_together_the_longer_is_meant() -> None:
    stream = TextStream(BYTE_LEVEL, SamplingParams(stop=("b", "ab")))
    assert stream.push(ids_of_bytes(b"xab")) == Stop(3, "ab")
    assert stream.take(final=True) == "x"


def test_min_tokens_lets_an_early_stop_pass() -> None:
    stream = TextStream(BYTE_LEVEL, SamplingParams(stop=("ab",), min_tokens=4, max_tokens=9))
    assert stream.push(ids_of_bytes(b"abab")) == Stop(4, "ab")
    assert stream.take(final=True) == "ab"


def test_an_id_beyond_the_vocabulary_has_no_text() -> None:
    stream = TextStream(BYTE_LEVEL, SamplingParams())
    assert stream.push([10**6, *ids_of_bytes(b"a")]) is None
    assert stream.take(final=True) == "a"


@given(stop=st.text("ab", min_size=1, max_size=6), pieces=st.lists(st.text("abc", max_size=5)))
def test_matcher_finds_all_completions_and_the_longest_begin(stop: str, pieces: list[str]) -> None:
    matcher, before, found = StopMatcher(stop), "", []
    for piece in pieces:
        end = matcher.feed(piece)
        while end is not None:
            found.append(len(before) + end)
            end = matcher.feed(piece, end)
        before += piece
        longest = max(length for length in range(len(stop)) if before.endswith(stop[:length]))
        assert matcher.num_matched == longest
    assert found == [end for end in range(len(stop), len(before) + 1) if before[:end].endswith(stop)]


def test_the_longest_stop_string_nearly_met_until_its_last_token() -> None:
    stop = "a" * MAX_STOP_CHARS
    stream = TextStream(BYTE_LEVEL, SamplingParams(stop=(stop,), max_tokens=None))
    token = ids_of_bytes(b"a")
    for _ in range(len(stop) - 1):
        assert stream.push(token) is None
        assert stream.take(final=False) == ""
    assert stream.push(token) == Stop(1, stop)
    assert stream.take(final=True) == ""
