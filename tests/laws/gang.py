"""The plain account of request-level batching: who waits, who sits in the batch, what each row will give alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from fakes import unbatched
from inflight.core.output import SchedulerOutput
from inflight.core.request import Request, SeqId
from inflight.schedulers.config import RequestLevelConfig
from laws.account import Account
from laws.window_law import Waiting, WindowLaw
from laws.worlds import World


@dataclass
class RequestLevelReport:
    outputs: list[SchedulerOutput] = field(default_factory=list)
    batches: Counter[str] = field(default_factory=Counter)  # by what let them leave
    num_aborted_in_flight: int = 0
    num_aborted_withheld: int = 0
    num_last_aborted: int = 0  # while others waited for the batch to come back
    num_failed_steps: int = 0
    num_failed_rows: int = 0
    num_rejected: int = 0
    num_pads: int = 0
    num_dead_rows: int = 0
    bins: set[int] = field(default_factory=set)


@dataclass
class Seat:
    """A row of the batch that runs: what it will give alone, and how far it is."""

    seq_id: SeqId
    request: Request
    wanted: list[int]
    num_got: int = 0
    num_covered: int = 0  # tokens that its blocks must hold
    retries: bool = False  # its step failed: it must run again, alone
    fate: str | None = None

    @property
    def num_prompt(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def num_stored(self) -> int:
        return self.num_prompt + self.num_got - 1 if self.num_got else 0

    @property
    def known(self) -> list[int]:
        return [*self.request.prompt_token_ids, *self.wanted[: self.num_got]]


class Gang(Account):
    """The waiting rows and the seats of the batch, as callers and steps change them."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        assert isinstance(world.config, RequestLevelConfig)
        self.report = RequestLevelReport()
        num_blocks = world.num_blocks - world.num_scratch
        if world.config.kv_allocator == "contiguous":
            piece = world.blocks_of(world.config.max_model_len)
            num_blocks = num_blocks // piece * piece
        self.law = WindowLaw(world.config, num_blocks)
        self.waiting: dict[SeqId, Waiting] = {}
        self.seats: list[Seat] = []
        self.in_flight: frozenset[SeqId] = frozenset()
        self.abort_asked: set[SeqId] = set()  # while they ran
        self.free_s = 0.0  # when the last batch ended

    def come(self, request: Request, now_s: float) -> None:
        choices = self.add(request, now_s)
        self.report.num_rejected += not choices
        num_prompt = len(request.prompt_token_ids)
        limit = self.world.max_num_tokens
        num_new = limit - num_prompt if request.sampling.max_tokens is None else request.sampling.max_tokens
        for seq_id in choices:
            self.waiting[seq_id] = Waiting(
                seq_id,
                self.keys[seq_id],
                request.arrival_s,
                num_prompt,
                num_new,
                self.world.num_held_for(num_prompt + num_new - 1),  # the last token is never run
            )

    def give_up(self, request_id: str, now_s: float) -> None:
        choices = self.abort(request_id, now_s)
        self.report.num_aborted_in_flight += bool(choices & self.in_flight)
        for seq_id in choices & self.waiting.keys():
            del self.waiting[seq_id]
            self.end(seq_id, "aborted")
        for seat in self.seats:
            if seat.seq_id in choices:
                if seat.fate == "finished":
                    self.report.num_aborted_withheld += 1
                    self.stand_up(seat, "aborted")
                else:
                    self.abort_asked.add(seat.seq_id)
        going = [seat for seat in self.running if seat.seq_id in self.abort_asked - self.in_flight]
        if self.seats and len(going) == len(self.running):
            if self.awaited:
                self.report.num_last_aborted += 1
                del going[0]  # is computed once more, so that those who have ended get their answers in its step
            else:
                self.seats, self.free_s = [], now_s
        for seat in going:
            self.stand_up(seat, "aborted")

    @property
    def running(self) -> list[Seat]:
        return [seat for seat in self.seats if seat.fate is None]

    @property
    def awaited(self) -> list[Seat]:
        return [seat for seat in self.seats if seat.fate == "finished"]

    def sit_down(self, rows: list[SeqId]) -> None:
        """A batch leaves."""
        for seq_id in rows:
            request = self.live[seq_id[0]]
            self.seats.append(Seat(seq_id, request, unbatched(request, seq_id[1], self.world.max_num_tokens)))
            self.report.bins.add(self.law.bin_of(self.waiting.pop(seq_id).num_prompt))

    def stand_up(self, seat: Seat, fate: str) -> None:
        """A row has ended for its caller; its seat stays."""
        seat.fate = fate
        self.end(seat.seq_id, fate)
