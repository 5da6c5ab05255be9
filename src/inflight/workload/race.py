"""The work of a race: requests written down token by token, or drawn so that every run has the same ones."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Annotated

import msgspec

from inflight.workload.item import WorkItem
from inflight.workload.lines import parse_lines

SEED = 0  # of the prompts that are drawn


class _Line(msgspec.Struct):
    id: int | str
    prompt_token_ids: Annotated[list[Annotated[int, msgspec.Meta(ge=0, lt=2**31)]], msgspec.Meta(min_length=1)]
    max_tokens: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
    prompt: str | None = None  # for people


def read_workload(path: Path) -> list[WorkItem]:
    """Read JSON lines of ``id``, ``prompt_token_ids``, ``max_tokens``.

    Blank lines are skipped; the requests stay in the order of the lines. ``.gz`` is unpacked.

    Raises ``ValueError``, with the line's number, for one that is not valid and for an id that was there before;
    ``OSError`` if the file cannot be read.
    """
    numbers: dict[str, int] = {}
    items = []
    for number, line in parse_lines(path, msgspec.json.Decoder(_Line).decode):
        item_id = str(line.id)
        if item_id in numbers:
            raise ValueError(f"{path}, line {number}: the id {item_id} is that of line {numbers[item_id]} too")
        numbers[item_id] = number
        items.append(WorkItem(item_id, tuple(line.prompt_token_ids), line.max_tokens))
    if not items:
        raise ValueError(f"{path} holds no requests")
    return items


def drawn_workload(num_prompts: int, prompt_tokens: int, output_tokens: int, vocab_size: int) -> list[WorkItem]:
    """Draw prompts of one length, of random token ids: the same ones in every run."""
    draw = random.Random(SEED)
    return [
        WorkItem(str(index), tuple(draw.choices(range(vocab_size), k=prompt_tokens)), output_tokens)
        for index in range(num_prompts)
    ]
