"""The ledger of waste: what every row-slot and every seat of every step was used for.

A step computes ``output.num_computed_tokens`` row-slots, and each of them is exactly one of

    prefill     a prompt token, run for the first time
    decode      any later token of a sequence, run for the first time
    padding     a pad token of a row that runs
    straggler   a token of a dead row: its sequence has ended, its batch has not
    recompute   a token of a place that its sequence had passed before, or one of a step that failed

What a sequence finds in the prefix cache, or brings back from the host tier, is not computed and in no class.

Beside them stand the seats, of which there are ``num_seats`` in each step: one holds a row that runs, a dead row, or
nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import NamedTuple

from inflight.core.errors import InvariantViolation
from inflight.core.output import ScheduledSequence, SchedulerOutput, TokenEvent
from inflight.core.request import SeqId

COMPUTED = ("prefill", "decode", "padding", "straggler", "recompute")


@dataclass(frozen=True, slots=True)
class Slots:
    """Counts over some steps: five of row-slots, three of seats. They can be added and subtracted."""

    prefill: int = 0
    decode: int = 0
    padding: int = 0
    straggler: int = 0
    recompute: int = 0
    seat_steps: int = 0  # seats x steps; 0 where the number of seats is not known
    dead: int = 0  # seats that held a dead row, of seat_steps
    empty: int = 0  # seats that held nothing, of seat_steps

    def __add__(self, other: Slots) -> Slots:
        return Slots(*map(operator.add, _counts(self), _counts(other)))

    def __sub__(self, other: Slots) -> Slots:
        return Slots(*map(operator.sub, _counts(self), _counts(other)))

    @property
    def num_computed_tokens(self) -> int:
        """Row-slots that were computed: the sum of the five classes."""
        return self.prefill + self.decode + self.padding + self.straggler + self.recompute

    def shares(self) -> tuple[dict[str, Fraction], dict[str, Fraction]]:
        """The share of each class in the computed row-slots, and of useful, straggler and empty in the seats.

        The shares of a set add up to exactly 1; they are all 0 where there is nothing to share.
        """
        computed = {name: _share(getattr(self, name), self.num_computed_tokens) for name in COMPUTED}
        seats = {
            "useful": _share(self.seat_steps - self.dead - self.empty, self.seat_steps),
            "straggler": _share(self.dead, self.seat_steps),
            "empty": _share(self.empty, self.seat_steps),
        }
        return computed, seats


_counts = operator.attrgetter(*(one.name for one in fields(Slots)))  # dataclasses.astuple copies, and is slow


class RowTokens(NamedTuple):
    """The tokens of one row by class; they add up to its ``q_len``."""

    prefill: int
    decode: int
    recompute: int


@dataclass(slots=True)
class _Sequence:
    num_prompt_tokens: int
    num_computed: int = 0  # the most that ever was: positions below it have run before, or were found


class Ledger:
    """Counts steps as they end; ``num_seats`` 0 means that nobody knows how many seats there are.

    Keeps two integers for each sequence that an executor knows and nothing of those that have ended.
    """

    def __init__(self, num_seats: int = 0) -> None:
        self.num_seats = num_seats
        self.slots = Slots()  # of all steps
        self._sequences: dict[SeqId, _Sequence] = {}

    def on_update(self, output: SchedulerOutput, failed: bool, events: Iterable[TokenEvent]) -> tuple[RowTokens, ...]:
        """Count a step that has ended, or failed as a whole; return what each of ``output.scheduled`` was.

        Raises ``InvariantViolation`` for a row whose sequence was in no ``output.new``, and for more rows than seats.
        """
        for seq_id in output.finished:
            self._sequences.pop(seq_id, None)
        for new in output.new:
            self._sequences[new.seq_id] = _Sequence(len(new.prompt_token_ids))
        rows = tuple(self._row(row, failed) for row in output.scheduled)
        prefill, decode, recompute = (sum(tokens) for tokens in zip(*rows, strict=True)) if rows else (0, 0, 0)
        straggler = (output.padded_to or 0) * len(output.dead)
        num_used = len(rows) + len(output.dead)
        if self.num_seats and num_used > self.num_seats:
            raise InvariantViolation(f"step {output.step} runs {num_used} rows on {self.num_seats} seats")
        self.slots += Slots(
            prefill,
            decode,
            output.num_computed_tokens - output.num_tokens - straggler,
            straggler,
            recompute,
            *((self.num_seats, len(output.dead), self.num_seats - num_used) if self.num_seats else ()),
        )
        for event in events:
            if event.finish_reason is not None:
                self._sequences.pop(event.seq_id, None)
        return rows

    def _row(self, row: ScheduledSequence, failed: bool) -> RowTokens:
        seq = self._sequences.get(row.seq_id)
        if seq is None:
            raise InvariantViolation(f"{row.seq_id} runs, but no step introduced it")
        end = row.start + len(row.token_ids)
        if failed:
            return RowTokens(0, 0, len(row.token_ids))
        first_new = min(max(row.start, seq.num_computed), end)
        prefill = max(0, min(end, seq.num_prompt_tokens) - first_new)
        seq.num_computed = max(seq.num_computed, end)
        return RowTokens(prefill, end - first_new - prefill, first_new - row.start)


def _share(part: int, whole: int) -> Fraction:
    return Fraction(part, whole) if whole else Fraction(0)
