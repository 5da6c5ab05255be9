"""The work of a race: prompts as token ids, each with the number of tokens it shall get."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from inflight.core.request import SamplingParams

SEED = 0  # of the prompts that are drawn


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One request; it ends after exactly ``max_tokens`` tokens."""

    item_id: str
    prompt_token_ids: tuple[int, ...]
    max_tokens: int

    @property
    def sampling(self) -> SamplingParams:
        """Greedy, whatever the tokens are."""
        return SamplingParams(temperature=0.0, max_tokens=self.max_tokens, ignore_eos=True)


class _Line(msgspec.Struct):
    id: int | str
    prompt_token_ids: Annotated[list[Annotated[int, msgspec.Meta(ge=0, lt=2**31)]], msgspec.Meta(min_length=1)]
    max_tokens: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
    prompt: str | None = None  # for people


def read_workload(path: Path) -> list[WorkItem]:
    """Read JSON lines of ``id``, ``prompt_token_ids``, ``max_tokens``; empty lines are skipped.

    Raises ``ValueError``, with the line's number, for one that is not valid and for an id that was there before;
    ``OSError`` if the file cannot be read.
    """
    decoder = msgspec.json.Decoder(_Line)
    numbers: dict[str, int] = {}
    items = []
    with path.open("rb") as file:
        for number, text in enumerate(file, start=1):
            if not text.strip():
                continue
            try:
                line = decoder.decode(text)
            except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
                raise ValueError(f"{path}, line {number}: {error}") from error
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


def check_fits(workload: Sequence[WorkItem], vocab_size: int, max_model_len: int) -> None:
    """Raise ``ValueError``, naming the request, for one that the engine would refuse or cut short."""
    for item in workload:
        num_tokens = len(item.prompt_token_ids) + item.max_tokens
        if num_tokens > max_model_len:
            raise ValueError(
                f"request {item.item_id}: {len(item.prompt_token_ids)} prompt tokens and {item.max_tokens} new ones "
                f"are {num_tokens}, and max_model_len is {max_model_len}"
            )
        if max(item.prompt_token_ids) >= vocab_size:
            raise ValueError(
                f"request {item.item_id}: token id {max(item.prompt_token_ids)}; the vocabulary is [0, {vocab_size})"
            )
