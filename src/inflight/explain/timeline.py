"""A step log as tracks of plain data: what every sequence and every seat was in every step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import NamedTuple

from inflight.core.request import SeqId
from inflight.metrics.ledger import Slots

Parts = tuple[tuple[str, int], ...]  # (class, tokens), as they lie in the row; a class without tokens has 0


class Span(NamedTuple):
    """Cells of one track in consecutive steps, each of which holds the same."""

    column: int  # its first step, as an index into ``Timeline.steps``
    num_steps: int
    parts: Parts
    sequence: int | None  # index into ``Timeline.sequences``; None: an empty seat


class Step(NamedTuple):
    """One step; seconds are counted from the first line of the log."""

    number: int
    start_s: float
    end_s: float
    num_rows: int
    num_waiting: int  # sequences that had come and hold no seat, preempted ones with them
    failed: bool
    slots: Slots


@dataclass(frozen=True, slots=True)
class SequenceTrack:
    """One sequence, from the first step that it could have joined to its last."""

    seq_id: SeqId
    num_prompt_tokens: int
    num_cached_tokens: int  # of the prompt, found in the prefix cache and not computed
    num_new_tokens: int  # sampled, whether or not a caller has them already
    arrival_s: float
    first_step_s: float | None  # None: it never ran
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """The steps that ended, and two views of them: a track for each sequence, and one for each seat."""

    scheduler: str
    steps: tuple[Step, ...]
    sequences: tuple[SequenceTrack, ...]  # in order of arrival
    seats: tuple[tuple[Span, ...], ...]
    notes: tuple[str, ...] = ()  # what a reader should know about the log

    @property
    def start_s(self) -> float:
        """Where its time begins: at the log's first line, or at the first step that was not clipped."""
        return self.steps[0].start_s if self.steps and self.steps[0].number else 0.0

    @property
    def slots(self) -> Slots:
        """The ledger of all steps."""
        return reduce(add, (step.slots for step in self.steps), Slots())

    def clip(self, first_step: int, num_steps: int | None = None) -> Timeline:
        """The same for ``num_steps`` steps from the one numbered ``first_step`` on; None: all of them.

        Sequences that do nothing in these steps are left out. Raises ``ValueError`` if no step is left.
        """
        last = None if num_steps is None else first_step + num_steps - 1
        columns = [
            column
            for column, step in enumerate(self.steps)
            if first_step <= step.number and (last is None or step.number <= last)
        ]
        if not columns:
            held = f"steps {self.steps[0].number} to {self.steps[-1].number}" if self.steps else "no step that ended"
            wanted = f"{first_step} on" if last is None else f"{first_step} to {last}"
            raise ValueError(f"there is no step from {wanted}: the log holds {held}")
        start, end = columns[0], columns[-1] + 1
        clipped = [_clip(track.spans, start, end) for track in self.sequences]
        kept = {old: new for new, old in enumerate(index for index, spans in enumerate(clipped) if spans)}

        def renumbered(spans: tuple[Span, ...]) -> tuple[Span, ...]:
            return tuple(
                span._replace(sequence=None if span.sequence is None else kept[span.sequence]) for span in spans
            )

        return replace(
            self,
            steps=self.steps[start:end],
            sequences=tuple(replace(self.sequences[old], spans=renumbered(clipped[old])) for old in kept),
            seats=tuple(renumbered(_clip(spans, start, end)) for spans in self.seats),
        )


def _clip(spans: tuple[Span, ...], start: int, end: int) -> tuple[Span, ...]:
    """What of ``spans`` lies in the columns [start, end), counted from ``start``."""
    clipped = []
    for span in spans:
        first, last = max(span.column, start), min(span.column + span.num_steps, end)
        if first < last:
            clipped.append(span._replace(column=first - start, num_steps=last - first))
    return tuple(clipped)
