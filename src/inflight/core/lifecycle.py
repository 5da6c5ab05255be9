"""The life of a sequence as a table: every legal change of status, and no other.

                      ┌──────────────── preempted ◄─┐
                      ▼                             │
    (add) ──► WAITING ──► RUNNING ──────────────────┘
                 │           │
                 ▼           ▼
              ABORTED, FINISHED, FAILED

A preempted sequence has its own status, because it goes back to its old place in the order and not to the end.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from inflight.core.errors import InvariantViolation
from inflight.core.request import SeqId


class Status(StrEnum):
    """Where a sequence stands."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"
    ABORTED = "aborted"
    FAILED = "failed"


TRANSITIONS: dict[Status, frozenset[Status]] = {
    Status.WAITING: frozenset({Status.RUNNING, Status.ABORTED}),
    Status.RUNNING: frozenset({Status.PREEMPTED, Status.FINISHED, Status.ABORTED, Status.FAILED}),
    Status.PREEMPTED: frozenset({Status.RUNNING, Status.ABORTED}),
    Status.FINISHED: frozenset(),
    Status.ABORTED: frozenset(),
    Status.FAILED: frozenset(),
}
ENDED = frozenset(status for status, after in TRANSITIONS.items() if not after)


class Transition(NamedTuple):
    """One change of status, and why."""

    seq_id: SeqId
    step: int
    before: Status
    after: Status
    cause: str


def check_move(seq_id: SeqId, before: Status, after: Status) -> None:
    """Raise ``InvariantViolation`` if ``before -> after`` is not in ``TRANSITIONS``."""
    if after not in TRANSITIONS[before]:
        raise InvariantViolation(f"{seq_id}: illegal move {before} -> {after}")
