"""From a step log to its timeline."""

from __future__ import annotations

from dataclasses import dataclass, field

from inflight.core.errors import InvariantViolation
from inflight.core.output import SchedulerOutput
from inflight.core.request import SeqId
from inflight.engine.recorder import Aborted, Added, Scheduled
from inflight.explain.log import EngineLog, StepDone
from inflight.explain.seats import Seats
from inflight.explain.timeline import Parts, SequenceTrack, Span, Step, Timeline
from inflight.metrics.ledger import Ledger, RowTokens


def read_timeline(log: EngineLog) -> Timeline:
    """The timeline of a log. Raises ``ValueError`` for a log that contradicts itself."""
    builder = _Builder(log.config.num_seats)
    notes = []
    if log.num_engines > 1:
        notes.append(f"{log.num_engines} engines wrote into this log, one after the other; this is the last of them")
    try:
        for event in log.events():
            builder.take(event)
    except (InvariantViolation, ValueError) as error:
        raise ValueError(f"{log.path} contradicts itself: {error}") from error
    if builder.in_flight is not None:
        notes.append(f"the log ends in the middle of step {builder.in_flight.step}, which is left out")
    return builder.build(log.started.scheduler, tuple(notes))


@dataclass(slots=True)
class _Track:
    """A track that is being written; it has been up to the column ``end``."""

    end: int
    spans: list[Span] = field(default_factory=list)

    def put(self, column: int, num_steps: int, parts: Parts, sequence: int | None) -> None:
        last = self.spans[-1] if self.spans else None
        if last is not None and last[2:] == (parts, sequence) and last.column + last.num_steps == column:
            self.spans[-1] = last._replace(num_steps=last.num_steps + num_steps)
        else:
            self.spans.append(Span(column, num_steps, parts, sequence))
        self.end = column + num_steps

    def fill(self, end: int, name: str, sequence: int | None) -> None:
        """Be ``name`` in all columns up to ``end`` that have not been written."""
        if end > self.end:
            self.put(self.end, end - self.end, ((name, 0),), sequence)


@dataclass(slots=True)
class _Sequence:
    index: int
    seq_id: SeqId
    num_prompt_tokens: int
    arrival_s: float
    track: _Track
    idle: str = "waiting"  # what it is in a step that it is not in
    first_step_s: float | None = None
    num_cached_tokens: int = 0
    num_new_tokens: int = 0


class _Builder:
    def __init__(self, num_seats: int) -> None:
        self.in_flight: SchedulerOutput | None = None
        self._ledger = Ledger(num_seats)
        self._seats = Seats(num_seats)
        self._seat_of: dict[SeqId, int] = {}  # in the newest step
        self._seat_tracks = [_Track(0) for _ in range(num_seats)]
        self._sequences: list[_Sequence] = []
        self._by_id: dict[SeqId, _Sequence] = {}  # the newest of that name
        self._live: set[SeqId] = set()
        self._steps: list[Step] = []
        self._num_waiting = 0  # in the newest step
        self._zero_s: float | None = None  # the time of the first line

    def take(self, event: Added | Aborted | Scheduled | StepDone) -> None:
        match event:
            case Added(now_s, request):
                for choice in range(request.sampling.n if event.rejected is None else 0):
                    self._add((request.request_id, choice), len(request.prompt_token_ids), self._seconds(now_s))
            case Aborted(_, request_id):
                for seq_id in [seq_id for seq_id in self._live if seq_id[0] == request_id]:
                    self._end(seq_id)
            case Scheduled(now_s, output):
                self._begin(output, self._seconds(now_s))
            case StepDone():
                self._finish(event)

    def build(self, scheduler: str, notes: tuple[str, ...]) -> Timeline:
        for seq_id in list(self._live):
            self._end(seq_id)
        for track in self._seat_tracks:
            track.fill(len(self._steps), "empty", None)
        sequences = (
            SequenceTrack(
                seq.seq_id,
                seq.num_prompt_tokens,
                seq.num_cached_tokens,
                seq.num_new_tokens,
                seq.arrival_s,
                seq.first_step_s,
                tuple(seq.track.spans),
            )
            for seq in self._sequences
        )
        seats = tuple(tuple(track.spans) for track in self._seat_tracks)
        return Timeline(scheduler, tuple(self._steps), tuple(sequences), seats, notes)

    def _seconds(self, now_s: float) -> float:
        if self._zero_s is None:
            self._zero_s = now_s
        return now_s - self._zero_s

    def _add(self, seq_id: SeqId, num_prompt_tokens: int, arrival_s: float) -> None:
        first_column = len(self._steps) + (self.in_flight is not None)  # of a step that it can join
        seq = _Sequence(len(self._sequences), seq_id, num_prompt_tokens, arrival_s, _Track(first_column))
        self._sequences.append(seq)
        self._by_id[seq_id] = seq
        self._live.add(seq_id)

    def _end(self, seq_id: SeqId) -> None:
        if seq_id in self._live:
            self._live.remove(seq_id)
            seq = self._by_id[seq_id]
            seq.track.fill(len(self._steps), seq.idle, seq.index)

    def _begin(self, output: SchedulerOutput, now_s: float) -> None:
        if self.in_flight is not None:
            raise ValueError(f"step {output.step} begins before step {self.in_flight.step} has ended")
        self.in_flight = output
        self._seat_of = self._seats.begin(output)
        for seq_id in output.preempted:
            seq = self._known(seq_id)
            seq.track.fill(len(self._steps), seq.idle, seq.index)
            seq.idle = "swapped" if seq_id in output.swapped_out else "preempted"
        for row in output.scheduled:
            seq = self._known(row.seq_id)
            if seq.first_step_s is None:
                seq.first_step_s, seq.num_cached_tokens = now_s, row.start
        self._num_waiting = len(self._live - self._seats.seated)

    def _finish(self, done: StepDone) -> None:
        output, update = done.output, done.update
        before = self._ledger.slots
        rows = self._ledger.on_update(output, update.failure is not None, update.events)
        for row, tokens in zip(output.scheduled, rows, strict=True):
            num_pads = 0 if output.padded_to is None else output.padded_to - len(row.token_ids)
            self._put(row.seq_id, _parts(num_pads, tokens))
            self._by_id[row.seq_id].idle = "empty"  # it keeps its seat
        for seq_id in output.swapped_out if update.failure is not None else ():
            self._known(seq_id).idle = "preempted"  # nobody knows what became of its KV
        for dead in output.dead:
            self._put(dead.seq_id, (("straggler", output.padded_to or 0),))
        self._steps.append(
            Step(
                output.step,
                self._seconds(done.start_s),
                self._seconds(update.now_s),
                len(output.scheduled),
                self._num_waiting,
                update.failure is not None,
                self._ledger.slots - before,
            )
        )
        for sampled in update.result.sampled if update.result is not None else ():
            self._known(sampled.seq_id).num_new_tokens += len(sampled.tokens)
        for event in update.events:
            if event.finish_reason is not None:
                self._end(event.seq_id)
        self._seats.end(update.events)
        self.in_flight = None

    def _put(self, seq_id: SeqId, parts: Parts) -> None:
        seq, column = self._known(seq_id), len(self._steps)
        if seq_id in self._live:
            seq.track.fill(column, seq.idle, seq.index)
        seq.track.put(column, 1, parts, seq.index)
        seat = self._seat_tracks[self._seat_of[seq_id]]
        seat.fill(column, "empty", None)
        seat.put(column, 1, parts, seq.index)

    def _known(self, seq_id: SeqId) -> _Sequence:
        if (seq := self._by_id.get(seq_id)) is None:
            raise ValueError(f"{seq_id} runs, but it was never added")
        return seq


def _parts(num_pads: int, tokens: RowTokens) -> Parts:
    """What a row holds, in the order of its positions."""
    named = (
        ("padding", num_pads),
        ("recompute", tokens.recompute),
        ("prefill", tokens.prefill),
        ("decode", tokens.decode),
    )
    return tuple((name, count) for name, count in named if count)
