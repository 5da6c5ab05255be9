"""Prompts for a trace: token ids of exactly its lengths, shared exactly as far as it says."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Annotated

import msgspec

from inflight.workload.item import WorkItem
from inflight.workload.lines import parse_lines
from inflight.workload.trace import Trace, TraceRequest

POOL_TOKENS = 1 << 16

_Text = Annotated[str, msgspec.Meta(min_length=1)]


def random_pool(vocab_size: int, seed: int = 0) -> list[int]:
    """Draw token ids to cut prompts from, where there is no text.

    Special tokens are at one of the ends of a vocabulary, so that an eighth of it is left out at either end.
    """
    return random.Random(seed).choices(range(vocab_size // 8, vocab_size - vocab_size // 8), k=POOL_TOKENS)


def make_prompts(trace: Trace, pool: Sequence[int], seed: int = 0) -> list[WorkItem]:
    """Make the requests of a trace: a prompt of each is the trace's own, or windows cut from ``pool`` (token ids).

    A prompt of the trace's own is cut or repeated to the length wanted. Otherwise two prompts are alike as far as
    their ``prefix_ids`` are, and differ in the token right after that; where more than ``len(set(pool))`` prompts
    part at one place, some differ only a few tokens later. Raises ``ValueError`` for an empty pool.
    """
    if not pool:
        raise ValueError("there are no token ids to make prompts from")
    forks = _Forks(pool, random.Random(seed))
    return [
        WorkItem(str(index), _prompt(request, forks, pool), request.num_output_tokens, request.arrival_s)
        for index, request in enumerate(trace)
    ]


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a prompt: its first token, which no other piece after the same prefix has, then a window."""

    number: int
    first: int
    offset: int


class _Forks:
    """The tree of prefixes: which piece follows which."""

    def __init__(self, pool: Sequence[int], draw: random.Random) -> None:
        self._draw = draw
        self._num_offsets = len(pool)
        self._firsts = draw.sample(sorted(set(pool)), k=len(set(pool)))
        self._num_branches: Counter[int] = Counter()  # by the number of the piece before
        self._shared: dict[tuple[int, int], _Piece] = {}  # by the number of the piece before, and the prefix id
        self._numbers = count(1)  # 0 is the start of every prompt

    def branch(self, before: int) -> _Piece:
        first = self._firsts[self._num_branches[before] % len(self._firsts)]
        self._num_branches[before] += 1
        return _Piece(next(self._numbers), first, self._draw.randrange(self._num_offsets))

    def shared(self, before: int, prefix_id: int) -> _Piece:
        key = (before, prefix_id)
        if key not in self._shared:
            self._shared[key] = self.branch(before)
        return self._shared[key]


def _prompt(request: TraceRequest, forks: _Forks, pool: Sequence[int]) -> tuple[int, ...]:
    if request.prompt_token_ids is not None:
        return tuple(_window(request.prompt_token_ids, 0, request.num_prompt_tokens))
    token_ids: list[int] = []
    for piece, num_tokens in _pieces(request, forks):
        token_ids.append(piece.first)
        token_ids += _window(pool, piece.offset, num_tokens - 1)
    return tuple(token_ids)


def _pieces(request: TraceRequest, forks: _Forks) -> Iterator[tuple[_Piece, int]]:
    """The prompt's shared blocks, then what is its own, each with its number of tokens."""
    before, left = 0, request.num_prompt_tokens
    for prefix_id in request.prefix_ids:
        if not left:
            return
        piece, num_tokens = forks.shared(before, prefix_id), min(request.prefix_block_tokens, left)
        yield piece, num_tokens
        before, left = piece.number, left - num_tokens
    if left:
        yield forks.branch(before), left


def _window(token_ids: Sequence[int], offset: int, num_tokens: int) -> list[int]:
    """The tokens from an offset on; from the start again after the end."""
    window: list[int] = []
    while len(window) < num_tokens:
        window += token_ids[offset : offset + num_tokens - len(window)]
        offset = 0
    return window


class _Line(msgspec.Struct):
    turns: Annotated[list[_Text], msgspec.Meta(min_length=1)] | None = None
    prompt: _Text | None = None
    question: _Text | None = None


def text_prompts(path: Path) -> list[str]:
    """Read real prompts: JSON lines, plain or .gz, of ``turns`` (the first one), ``prompt`` or ``question``.

    Later turns follow an answer that is not in the file. Other keys are left alone. Raises ``ValueError``, with the
    line's number, for a line without any of the three, and for a file without lines; ``OSError`` if it cannot be read.
    """
    decoder = msgspec.json.Decoder(_Line)

    def first_turn(text: bytes) -> str:
        line = decoder.decode(text)
        prompt = line.turns[0] if line.turns else line.prompt or line.question
        if prompt is None:
            raise ValueError("none of turns, prompt and question")
        return prompt

    prompts = [prompt for _, prompt in parse_lines(path, first_turn)]
    if not prompts:
        raise ValueError(f"{path} holds no prompts")
    return prompts
