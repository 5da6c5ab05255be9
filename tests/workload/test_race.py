"""A workload is read as it is written, and what is wrong with it is said with the line's number."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.workload.item import WorkItem, check_fits
from inflight.workload.race import drawn_workload, read_workload

GOOD = '{"id": 7, "prompt_token_ids": [1, 2], "max_tokens": 3}'

items = st.lists(
    st.builds(
        WorkItem,
        item_id=st.integers().map(str),
        prompt_token_ids=st.lists(st.integers(0, 2**31 - 1), min_size=1).map(tuple),
        max_tokens=st.integers(1, 2**31 - 1),
    ),
    min_size=1,
    unique_by=lambda item: item.item_id,
)


@given(items, st.booleans())
def test_what_is_written_is_what_is_read(tmp_path_factory: pytest.TempPathFactory, work: list, with_text: bool) -> None:
    file = tmp_path_factory.mktemp("workload") / "work.jsonl"
    lines = [
        {"id": int(item.item_id), "prompt_token_ids": item.prompt_token_ids, "max_tokens": item.max_tokens}
        | ({"prompt": "as text"} if with_text else {})
        for item in work
    ]
    file.write_text("\n\n".join(map(json.dumps, lines)))
    assert read_workload(file) == work


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("{", "truncated"),
        ("[1]", "object"),
        ('{"id": 1, "prompt_token_ids": [], "max_tokens": 1}', "prompt_token_ids"),
        ('{"id": 1, "prompt_token_ids": [1, -1], "max_tokens": 1}', "prompt_token_ids"),
        ('{"id": 1, "prompt_token_ids": ["a"], "max_tokens": 1}', "prompt_token_ids"),
        ('{"id": 1, "prompt_token_ids": [1], "max_tokens": 0}', "max_tokens"),
        ('{"id": 1, "prompt_token_ids": [1], "max_tokens": 1.5}', "max_tokens"),
        ('{"id": 1, "prompt_token_ids": [1]}', "max_tokens"),
        ('{"id": null, "prompt_token_ids": [1], "max_tokens": 1}', "id"),
        ('{"id": "7", "prompt_token_ids": [1], "max_tokens": 1}', "that of line 1"),
        ("\xff", "line 3"),
    ],
)
def test_a_malformed_line_is_named_by_its_number(tmp_path: Path, line: str, named: str) -> None:
    file = tmp_path / "work.jsonl"
    file.write_bytes(f"{GOOD}\n\n{line}\n".encode("latin-1"))
    with pytest.raises(ValueError, match="line 3") as raised:
        read_workload(file)
    assert named in str(raised.value)


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_an_empty_file_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "work.jsonl"
    file.write_text(text)
    with pytest.raises(ValueError, match="holds no requests"):
        read_workload(file)


@given(st.integers(1, 20), st.integers(1, 20), st.integers(0, 50))
def test_exactly_what_does_not_fit_is_refused(num_prompt_tokens: int, max_tokens: int, limit: int) -> None:
    work = [WorkItem("fits", (0,), 0), WorkItem("long", (3,) * num_prompt_tokens, max_tokens)]
    if num_prompt_tokens + max_tokens <= max(limit, 1):
        check_fits(work, 4, max(limit, 1))
    else:
        with pytest.raises(ValueError, match=r"request long.*max_model_len"):
            check_fits(work, 4, max(limit, 1))
    with pytest.raises(ValueError, match="request long: token id 3"):
        check_fits(work, 3, 100)


def test_drawn_prompts_are_the_same_in_every_run() -> None:
    work = drawn_workload(5, 40, 6, 1000)
    assert work == drawn_workload(5, 40, 6, 1000)
    assert len({item.prompt_token_ids for item in work}) == 5
    assert {(len(item.prompt_token_ids), item.max_tokens) for item in work} == {(40, 6)}
    assert all(0 <= token_id < 1000 for item in work for token_id in item.prompt_token_ids)
