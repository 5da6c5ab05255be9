"""The limits and policies of the schedulers: what all of them take, and one class for each family."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

POLICIES = ("fcfs", "priority")
KV_ALLOCATORS = ("paged", "contiguous")
PREFIX_CACHES = ("radix", "hash", "none")
PREEMPTION_MODES = ("auto", "recompute", "swap")
ADMISSIONS = ("watermark", "none", "future-peak", "reserve-all")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig(ABC):
    """The queue, and how memory is shared out. Raises ``ValueError`` for a value out of range."""

    name: ClassVar[str]  # of the family

    max_model_len: int | None = field(
        default=None,
        metadata={"help": "prompt and output of one sequence, in tokens, from 1; none: all that fits"},
    )
    scheduling_policy: str = field(
        default="fcfs",
        metadata={"help": "who is served first: by arrival, or by priority (lower first)", "choices": POLICIES},
    )
    priority_ageing_s: float = field(
        default=30.0, metadata={"help": "seconds of waiting that raise a request by one priority class"}
    )
    max_num_waiting_seqs: int | None = field(
        default=1024, metadata={"help": "sequences that wait, at most; more are refused; none: no limit"}
    )
    kv_allocator: str = field(
        default="paged",
        metadata={
            "help": "KV memory of a sequence: block by block as it grows, or max_model_len tokens reserved in one "
            "piece, to compare with",
            "choices": KV_ALLOCATORS,
        },
    )

    def __post_init__(self) -> None:
        _whole("max_model_len", self.max_model_len)
        _whole("max_num_waiting_seqs", self.max_num_waiting_seqs)
        _one_of("scheduling_policy", self.scheduling_policy, POLICIES)
        _one_of("kv_allocator", self.kv_allocator, KV_ALLOCATORS)
        if not 0.001 <= self.priority_ageing_s <= 86_400:
            raise ValueError(f"priority_ageing_s must be in [0.001, 86400], got {self.priority_ageing_s}")

    @property
    @abstractmethod
    def num_seats(self) -> int:
        """Sequences that can be in one step, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuousConfig(SchedulerConfig):
    """Continuous batching: who runs is decided again before every forward pass.

    The two limits that depend on the model and the machine may be left open; whoever makes a scheduler decides them.
    """

    name: ClassVar[str] = "continuous"

    max_num_seqs: int = field(default=32, metadata={"help": "sequences that run at once, at most"})
    max_num_batched_tokens: int | None = field(
        default=None,
        metadata={"help": "tokens in one step, at most, from 1; none: measured, so that a step takes about 100 ms"},
    )
    enable_chunked_prefill: bool = field(default=True, metadata={"help": "split a prompt over several steps"})
    enable_prefix_caching: bool = field(
        default=True, metadata={"help": "reuse the KV of prompts and answers that begin with the same tokens"}
    )
    prefix_cache: str = field(
        default="radix",
        metadata={
            "help": "how the beginnings of sequences are found: by a radix tree, by keyed hashes, or not at all",
            "choices": PREFIX_CACHES,
        },
    )
    admission: str = field(
        default="watermark",
        metadata={
            "help": "who may enter while others run: whoever fits below watermark_high, with a pause after a "
            "preemption; whoever fits now (none); whoever fits until all have ended as late as they may (future-peak); "
            "or whoever finds free all that it can ever need (reserve-all)",
            "choices": ADMISSIONS,
        },
    )
    watermark_high: float = field(
        default=0.9, metadata={"help": "share of the KV blocks up to which sequences enter, in (0, 1]"}
    )
    watermark_low: float = field(
        default=0.7,
        metadata={"help": "after a preemption nobody enters until no more than this share is held, from 0"},
    )
    kv_reserve_blocks: int = field(
        default=0, metadata={"help": "KV blocks kept free for the output of each sequence that enters, from 0"}
    )
    preemption_mode: str = field(
        default="auto",
        metadata={
            "help": "what becomes of the KV of a sequence that must give its memory up: computed again, swapped to "
            "host memory while there is room, or what costs less time by what was measured",
            "choices": PREEMPTION_MODES,
        },
    )
    max_preemptions: int = field(
        default=4, metadata={"help": "preemptions of one sequence, at most; then it keeps its memory until it ends"}
    )

    def __post_init__(self) -> None:
        SchedulerConfig.__post_init__(self)
        num_batched, max_len = self.max_num_batched_tokens, self.max_model_len
        _whole("max_num_seqs", self.max_num_seqs, optional=False)
        _whole("max_num_batched_tokens", num_batched)
        if num_batched is not None and num_batched < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({num_batched}) must be at least max_num_seqs ({self.max_num_seqs}): every "
                "running sequence gets a token in every step"
            )
        if not self.enable_chunked_prefill and num_batched is not None and num_batched < (max_len or 0):
            raise ValueError(
                f"without chunked prefill max_num_batched_tokens ({num_batched}) must be at least max_model_len "
                f"({max_len}): a prompt runs in one step"
            )
        for name in ("max_preemptions", "kv_reserve_blocks"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 0:
                raise ValueError(f"{name} must be a whole number of at least 0, got {getattr(self, name)!r}")
        _one_of("prefix_cache", self.prefix_cache, PREFIX_CACHES)
        _one_of("admission", self.admission, ADMISSIONS)
        _one_of("preemption_mode", self.preemption_mode, PREEMPTION_MODES)
        for name in ("enable_chunked_prefill", "enable_prefix_caching"):
            if type(getattr(self, name)) is not bool:
                raise ValueError(f"{name} must be true or false, got {getattr(self, name)!r}")
        for name in ("watermark_low", "watermark_high"):
            if type(getattr(self, name)) not in (int, float):
                raise ValueError(f"{name} must be a number, got {getattr(self, name)!r}")
        low, high = self.watermark_low, self.watermark_high
        if not 0 <= low <= high <= 1 or high == 0:  # NaN compares false, and is refused
            raise ValueError(
                f"watermark_low and watermark_high must be in [0, 1], the low one not above the high one, got {low} "
                f"and {high}"
            )

    @property
    def prefix_index(self) -> str:
        """One of ``PREFIX_CACHES``: none, too, where caching is off or no memory could be shared."""
        shares = self.enable_prefix_caching and self.kv_allocator == "paged"
        return self.prefix_cache if shares else "none"

    @property
    def num_seats(self) -> int:
        """See ``SchedulerConfig``."""
        return self.max_num_seqs


@dataclass(frozen=True, slots=True)
class Trigger:
    """When a batch leaves, and with whom: at ``max_rows``, when no more fit, or when the window closes."""

    max_rows: int
    window_s: float  # from the arrival of the oldest that waits; infinite: no window
    max_tokens: int | None = None  # rows x (longest prompt) + their new tokens, at most; None: no limit
    preferred_rows: tuple[int, ...] = ()  # sizes at which it leaves at once, ascending
    length_bins: tuple[int, ...] = ()  # prompts of so many tokens, at most, share a batch; ascending


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLevelConfig(SchedulerConfig):
    """Request-level batching: a batch leaves together and comes back together."""

    padding: bool = field(
        default=True,
        metadata={"help": "fill short prompts up and compute rows that have ended, as such batches do; off: ragged"},
    )

    @property
    @abstractmethod
    def trigger(self) -> Trigger:
        """When a batch leaves."""

    @property
    def num_seats(self) -> int:
        """See ``SchedulerConfig``."""
        return self.trigger.max_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticConfig(RequestLevelConfig):
    """Static batching: so many requests, in the order in which they came."""

    name: ClassVar[str] = "static"

    batch_size: int = field(default=8, metadata={"help": "sequences of a batch; the last one may have fewer"})
    fill_timeout_ms: float | None = field(
        default=None,
        metadata={"help": "how long the oldest waits for the batch to fill, from 0; none: for ever"},
    )

    def __post_init__(self) -> None:
        SchedulerConfig.__post_init__(self)
        _whole("batch_size", self.batch_size, optional=False)
        if self.fill_timeout_ms is not None:
            _milliseconds("fill_timeout_ms", self.fill_timeout_ms)
        _fills_from_queue("batch_size", self.batch_size, self.max_num_waiting_seqs)

    @property
    def trigger(self) -> Trigger:
        """See ``RequestLevelConfig``."""
        return Trigger(self.batch_size, math.inf if self.fill_timeout_ms is None else self.fill_timeout_ms / 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicConfig(RequestLevelConfig):
    """Dynamic batching: as static, but a batch also leaves when its window closes or its tokens are full."""

    name: ClassVar[str] = "dynamic"

    max_batch_size: int = field(default=8, metadata={"help": "sequences of a batch, at most"})
    max_wait_ms: float = field(
        default=50.0, metadata={"help": "how long the oldest waits for others, from 0; its batch then leaves as it is"}
    )
    max_tokens_in_batch: int | None = field(
        default=None,
        metadata={"help": "sequences x longest prompt, and their new tokens, at most; none: no limit but memory"},
    )
    preferred_batch_size: tuple[int, ...] = field(
        default=(),
        metadata={
            "help": "a batch leaves at once at the largest of these sizes that can be filled, such as 4,8; "
            "none: at max_batch_size alone"
        },
    )
    length_bins: tuple[int, ...] = field(
        default=(),
        metadata={"help": "only prompts of the same bin share a batch: upper bounds in tokens, such as 64,256,1024"},
    )

    def __post_init__(self) -> None:
        SchedulerConfig.__post_init__(self)
        _whole("max_batch_size", self.max_batch_size, optional=False)
        _milliseconds("max_wait_ms", self.max_wait_ms)
        _whole("max_tokens_in_batch", self.max_tokens_in_batch)
        if self.max_tokens_in_batch == 1:
            raise ValueError("max_tokens_in_batch must be at least 2, one token in and one out, got 1")
        _fills_from_queue("max_batch_size", self.max_batch_size, self.max_num_waiting_seqs)
        for name in ("preferred_batch_size", "length_bins"):
            values = tuple(sorted(getattr(self, name)))
            object.__setattr__(self, name, values)
            for value in values:
                _whole(name, value, optional=False)
        if self.preferred_batch_size and self.preferred_batch_size[-1] > self.max_batch_size:
            raise ValueError(
                f"preferred_batch_size ({self.preferred_batch_size[-1]}) must not exceed max_batch_size "
                f"({self.max_batch_size})"
            )

    @property
    def trigger(self) -> Trigger:
        """See ``RequestLevelConfig``."""
        return Trigger(
            self.max_batch_size,
            self.max_wait_ms / 1000,
            self.max_tokens_in_batch,
            self.preferred_batch_size,
            self.length_bins,
        )


def _fills_from_queue(name: str, num_rows: int, max_num_waiting_seqs: int | None) -> None:
    if max_num_waiting_seqs is not None and max_num_waiting_seqs < num_rows:
        raise ValueError(
            f"max_num_waiting_seqs ({max_num_waiting_seqs}) must be at least {name} ({num_rows}): a batch fills from "
            "the queue"
        )


def _whole(name: str, value: int | None, optional: bool = True) -> None:
    if value is None and optional:
        return
    if type(value) is not int or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")


def _milliseconds(name: str, value: float) -> None:
    if type(value) not in (int, float) or not 0 <= value <= 86_400_000:  # NaN compares false, and is refused
        raise ValueError(f"{name} must be in [0, 86400000] milliseconds, got {value!r}")


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {choices}, got {value!r}")
