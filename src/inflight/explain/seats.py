"""Which sequence sits where: a sequence keeps its seat from its first step until it leaves."""

from __future__ import annotations

from collections.abc import Iterable, Set

from inflight.core.output import SchedulerOutput, TokenEvent
from inflight.core.request import SeqId


class Seats:
    """The log of a scheduler names no seats: who comes takes the first that is free.

    A seat is given up by who ended, was aborted or lost its memory, but not while it is still computed as a dead row.
    """

    def __init__(self, num_seats: int) -> None:
        self._holders: list[SeqId | None] = [None] * num_seats
        self._seats: dict[SeqId, int] = {}
        self._left: set[SeqId] = set()  # who gives up a seat with the next step, unless dead in it

    def begin(self, output: SchedulerOutput) -> dict[SeqId, int]:
        """Seat the rows of a step, and the dead ones, and return where each sits."""
        dead = [row.seq_id for row in output.dead]
        present = [*(row.seq_id for row in output.scheduled), *dead]
        self._left.update(output.finished, output.preempted)
        for seq_id in self._left.difference(dead):
            self._stand_up(seq_id)
        self._left.intersection_update(dead)
        for seq_id in present:
            if seq_id not in self._seats:
                self._sit_down(seq_id, set(present))
        return {seq_id: self._seats[seq_id] for seq_id in present}

    def end(self, events: Iterable[TokenEvent]) -> None:
        """Take in what a step gave."""
        self._left.update(event.seq_id for event in events if event.finish_reason is not None)

    @property
    def seated(self) -> Set[SeqId]:
        """Who holds a seat."""
        return self._seats.keys()

    def _stand_up(self, seq_id: SeqId) -> None:
        if (seat := self._seats.pop(seq_id, None)) is not None:
            self._holders[seat] = None

    def _sit_down(self, seq_id: SeqId, present: set[SeqId]) -> None:
        # Where nobody has left, somebody who is not in this step must have: the rows of a step never outnumber seats.
        seat = next(
            (seat for seat, holder in enumerate(self._holders) if holder is None),
            next((seat for seat, holder in enumerate(self._holders) if holder not in present), None),
        )
        if seat is None:
            raise ValueError(f"a step runs {len(present)} rows on {len(self._holders)} seats")
        if (holder := self._holders[seat]) is not None:
            del self._seats[holder]
        self._holders[seat] = seq_id
        self._seats[seq_id] = seat
