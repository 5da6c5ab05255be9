"""The same bytes give the same events, however they are cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.bench.sse_reader import SSEReader


def events_of(stream: bytes, cuts: list[int]) -> list[bytes]:
    reader = SSEReader()
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    return [data for start, end in pairwise(places) for data in reader.feed(stream[start:end])]


lines = st.one_of(
    st.sampled_from(
        [b"", b"", b": keep-alive", b"data", b"event: ping", b"id: 7", b"datax: no", b"data:two", b"data: "]
    ),
    st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])).map(
        lambda text: b"data: " + text.encode()
    ),
)
streams = st.lists(st.tuples(lines, st.sampled_from([b"\n", b"\r\n", b"\r"]))).map(
    lambda parts: b"".join(line + end for line, end in parts)
)


@given(streams, st.lists(st.integers(0, 400)))
def test_cuts_change_nothing(stream: bytes, cuts: list[int]) -> None:
    assert events_of(stream, cuts) == events_of(stream, [])
    assert events_of(stream, list(range(len(stream)))) == events_of(stream, [])


@given(
    st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), min_size=1)),
    st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_what_was_sent_comes_out(texts: list[str], end: str) -> None:
    stream = "".join(f"data: {text}{end}{end}" for text in texts).encode()
    assert events_of(stream, []) == [text.encode() for text in texts]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\ndata:b\n\n", [b"a", b"b"]),
        (b"data:  a \n\n", [b" a "]),  # one space is taken off
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"data\n\n", [b""]),
        (b": comment\n\n\n\ndata: a\n\n", [b"a"]),
        (b"event: error\ndata: a\nid: 1\nretry: 5\n\n", [b"a"]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"data: a\r\rdata: b\r\n\r\n", [b"a", b"b"]),
        (b"data: a\n", []),  # the empty line never came
        (b"nonsense", []),
    ],
    ids=str,
)
def test_by_the_specification(stream: bytes, events: list[bytes]) -> None:
    assert events_of(stream, []) == events


def test_an_event_is_there_with_its_last_byte() -> None:
    reader = SSEReader()
    assert reader.feed(b"data: a\r\n\r") == [b"a"]
    assert reader.feed(b"\ndata: b\n\n") == [b"b"]
