"""Prompts have exactly the lengths of their trace, and share exactly what it says."""

import gzip
import json
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.workload.prompts import make_prompts, random_pool, text_prompts
from inflight.workload.shape import scale_lengths
from inflight.workload.trace import Trace, TraceRequest
from workload.traces import traces

pools = st.lists(st.integers(0, 10**6), min_size=60, max_size=200, unique=True)


def num_alike(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Entries at the start that are the same."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def assert_shared_exactly(trace: Trace, pool: list[int], seed: int) -> None:
    items = make_prompts(trace, pool, seed)
    for one, other in combinations(range(len(items)), 2):
        a, b = trace.requests[one], trace.requests[other]
        blocks = num_alike(a.prefix_ids, b.prefix_ids) * max(a.prefix_block_tokens, b.prefix_block_tokens)
        expected = min(blocks, a.num_prompt_tokens, b.num_prompt_tokens)
        assert num_alike(items[one].prompt_token_ids, items[other].prompt_token_ids) == expected


@given(traces(), pools, st.integers())
def test_lengths_and_arrivals_are_those_of_the_trace(trace: Trace, pool: list[int], seed: int) -> None:
    items = make_prompts(trace, pool, seed)
    for index, (request, item) in enumerate(zip(trace, items, strict=True)):
        assert len(item.prompt_token_ids) == request.num_prompt_tokens
        assert item.max_tokens == request.num_output_tokens
        assert item.arrival_s == request.arrival_s
        assert item.item_id == str(index)
        assert set(item.prompt_token_ids) <= set(pool)
    assert items == make_prompts(trace, pool, seed)


@given(traces(), pools, st.integers(), st.sampled_from([1.0, 0.1, 0.5, 2.5]))
def test_two_prompts_are_alike_exactly_as_far_as_their_prefix_ids(
    trace: Trace, pool: list[int], seed: int, factor: float
) -> None:
    assert_shared_exactly(scale_lengths(trace, factor), pool, seed)


def test_more_prompts_than_tokens_still_differ() -> None:
    trace = Trace(tuple(TraceRequest(0.0, 64, 1) for _ in range(100)))
    assert len({item.prompt_token_ids for item in make_prompts(trace, random_pool(8), 0)}) == 100


def test_prompts_are_windows_of_the_text() -> None:
    pool = list(range(1000))
    (item,) = make_prompts(Trace((TraceRequest(0.0, 1500, 1),)), pool)
    window = item.prompt_token_ids[1:]
    assert window == tuple((window[0] + step) % 1000 for step in range(1499))


def test_a_prompt_of_the_traces_own_is_kept_cut_or_repeated() -> None:
    own = TraceRequest(0.0, 3, 1, prompt_token_ids=(7, 8, 9))
    for factor, expected in ((1, (7, 8, 9)), (0.7, (7, 8)), (2, (7, 8, 9, 7, 8, 9))):
        (item,) = make_prompts(scale_lengths(Trace((own,)), factor), [1])
        assert item.prompt_token_ids == expected


@given(st.integers(1, 10**5), st.integers())
def test_random_tokens_are_of_the_vocabulary_and_not_at_its_ends(vocab_size: int, seed: int) -> None:
    pool = random_pool(vocab_size, seed)
    assert min(pool) >= vocab_size // 8
    assert max(pool) < vocab_size - vocab_size // 8
    assert pool == random_pool(vocab_size, seed)


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="no token ids"):
        make_prompts(Trace((TraceRequest(0.0, 1, 1),)), [])


@pytest.mark.parametrize("name", ["prompts.jsonl", "prompts.jsonl.gz"])
def test_text_is_the_first_turn_the_prompt_or_the_question(tmp_path: Path, name: str) -> None:
    lines = [{"question_id": 1, "turns": ["first", "second"]}, {"prompt": "code"}, {"question": "why?", "answer": "so"}]
    text = "\n\n".join(map(json.dumps, lines)).encode()
    file = tmp_path / name
    file.write_bytes(gzip.compress(text) if file.suffix == ".gz" else text)
    assert text_prompts(file) == ["first", "code", "why?"]


@pytest.mark.parametrize("line", ["{", "{}", '{"turns": []}', '{"prompt": ""}', '{"prompt": 3}', '{"text": "a"}'])
def test_a_line_without_a_prompt_is_named_by_its_number(tmp_path: Path, line: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(f'{{"prompt": "a"}}\n{line}\n')
    with pytest.raises(ValueError, match="line 2"):
        text_prompts(file)
    file.write_text("\n")
    with pytest.raises(ValueError, match="no prompts"):
        text_prompts(file)
