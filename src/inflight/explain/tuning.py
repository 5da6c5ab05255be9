"""What each setting does, as data: a row for each, with what a sweep must show for the row to be true.

A claim says how one metric moves as the value grows. It holds if the metric moves that way over the whole sweep
(Spearman's rank correlation), or over a part of it and is flat over the rest: then the plateau is named. Where neither
is so, the cell is not confirmed, whatever the books say.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

MIN_CORRELATION = 0.9
FLAT_SHARE = 0.05  # of what a metric moves in all: neighbours closer than that are a plateau
MIN_MOVE = 0.05  # of its largest value: a metric that moves less is flat

Setting = int | float | tuple[int, ...]  # a value of a parameter
LIGHT, HEAVY, AT_ONCE = 0.1, 2.0, math.inf  # offered load, as a share of the capacity of continuous batching


class Trend(StrEnum):
    """How a metric moves as a parameter grows."""

    RISES = "rises"
    FALLS = "falls"


@dataclass(frozen=True, slots=True)
class Claim:
    """``metric`` moves as ``trend`` says when the parameter grows, at an offered load; workload None: the row's."""

    metric: str
    trend: Trend
    load: float = HEAVY
    workload: str | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """What one direction does, in words and as claims. A claim is about growing values in either cell."""

    text: str
    claims: tuple[Claim, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One parameter: ``values`` are what is tried, ascending; ``fixed`` what else is set in the sweep.

    ``length_bins`` stands for how many bounds there are.
    """

    parameter: str
    family: str
    meaning: str
    smaller: Cell
    larger: Cell
    advice: str
    values: tuple[Setting, ...]
    fixed: dict[str, int | float | str] = field(default_factory=dict)
    num_blocks: int = 4096  # of KV memory, ample
    workload: str = "chat"

    @property
    def claims(self) -> tuple[Claim, ...]:
        """Those of both cells, each once."""
        return tuple(dict.fromkeys((*self.smaller.claims, *self.larger.claims)))

    def traffic(self, claim: Claim) -> tuple[str, float]:
        """The workload and the offered load that a claim is about."""
        return claim.workload or self.workload, claim.load


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a sweep says about a claim; ``moving`` is the part of the sweep in which the metric moves, by index."""

    confirmed: bool
    correlation: float | None  # over the whole sweep; None: the metric does not move at all
    moving: tuple[int, int] | None  # the first and the last; None: flat throughout


def judge(trend: Trend, measured: Sequence[float]) -> Verdict:
    """Hold a trend against what was measured at ascending values. Raises ``ValueError`` for fewer than three."""
    if len(measured) < 3:
        raise ValueError(f"a sweep has at least 3 values, got {len(measured)}")
    sign = 1 if trend is Trend.RISES else -1
    whole = spearman(range(len(measured)), measured)
    move = max(measured) - min(measured)
    if whole is None or move < MIN_MOVE * max(map(abs, measured)):
        return Verdict(False, whole, None)
    first, last = _moving(measured, FLAT_SHARE * move)
    part = measured[first : last + 1]
    correlation = spearman(range(len(part)), part)
    holds = correlation is not None and sign * correlation >= MIN_CORRELATION
    return Verdict(holds or sign * whole >= MIN_CORRELATION, whole, (first, last))


def _moving(measured: Sequence[float], width: float) -> tuple[int, int]:
    """Where the plateau at the start ends and the one at the end begins: all values of a plateau within ``width``."""
    last = len(measured) - 1
    while max(measured[last - 1 :]) - min(measured[last - 1 :]) <= width:
        last -= 1
    first = 0
    while max(measured[: first + 2]) - min(measured[: first + 2]) <= width:
        first += 1
    return (first, last) if first < last else (0, len(measured) - 1)


def spearman(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Spearman's rank correlation, from -1 to 1; ties share their mean rank. None where one of the two is constant."""
    ranks_x, ranks_y = _ranks(x), _ranks(y)
    mean = (len(ranks_x) - 1) / 2
    above_x, above_y = [rank - mean for rank in ranks_x], [rank - mean for rank in ranks_y]
    squares = sum(a * a for a in above_x) * sum(b * b for b in above_y)
    return sum(a * b for a, b in zip(above_x, above_y, strict=True)) / squares**0.5 if squares else None


def _ranks(values: Sequence[float]) -> list[float]:
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) - 1) / 2 for value in values
    ]


def _rises(*metrics: str, load: float = HEAVY, workload: str | None = None) -> tuple[Claim, ...]:
    return tuple(Claim(metric, Trend.RISES, load, workload) for metric in metrics)


def _falls(*metrics: str, load: float = HEAVY, workload: str | None = None) -> tuple[Claim, ...]:
    return tuple(Claim(metric, Trend.FALLS, load, workload) for metric in metrics)


ROWS: tuple[Row, ...] = (
    Row(
        parameter="max_num_seqs",
        family="continuous",
        meaning="sequences that run at once, at most",
        smaller=Cell("few rows share a step: fewer tokens/s; memory is safe", _rises("output_tokens_per_s", "kv_peak")),
        larger=Cell(
            "more tokens/s, up to a plateau; each token comes later; memory fills up, and sequences are preempted",
            _rises("output_tokens_per_s", "tpot_p50_s", "kv_peak", "preemptions"),
        ),
        advice="raise it step by step under load, to the plateau and no further",
        values=(1, 2, 4, 8, 16, 32, 64),
        fixed={"max_num_batched_tokens": 256},
        num_blocks=400,
    ),
    Row(
        parameter="max_num_batched_tokens",
        family="continuous",
        meaning="tokens of one step, at most: how much of a prompt may run beside those who decode",
        smaller=Cell(
            "a long prompt disturbs the others less, and takes more steps",
            (*_rises("itl_p99_s", load=0.8), *_falls("num_steps", load=0.8)),
        ),
        larger=Cell(
            "prompts finish sooner, and the others wait longer for their next token",
            (*_falls("ttft_p50_s", load=0.8), *_rises("itl_p99_s", load=0.8)),
        ),
        advice="as many as a step may take at the longest gap that callers accept",
        values=(16, 32, 64, 128, 256, 512, 1024),
        fixed={"max_num_seqs": 16},
    ),
    Row(
        parameter="num_gpu_blocks_override",
        family="continuous",
        meaning="KV memory, in blocks; what gpu_memory_utilization and kv_cache_memory_bytes come to",
        smaller=Cell(
            "little KV: many preemptions, work done twice, fewer rows at once",
            (*_falls("preemptions", "recompute_share"), *_rises("mean_batch", "output_tokens_per_s")),
        ),
        larger=Cell(
            "what is not needed lies idle, and the machine has no reserve (which a simulation cannot show)",
            _falls("kv_mean"),
        ),
        advice="start with 0.85 of the memory and watch preemptions: they should be rare at the peak",
        values=(96, 128, 192, 256, 384, 512, 768, 1024),
        fixed={"max_num_seqs": 32, "max_num_batched_tokens": 256},
    ),
    Row(
        parameter="kv_reserve_blocks",
        family="continuous",
        meaning="KV blocks kept free for the output of each sequence that enters",
        smaller=Cell(
            "sequences enter that have no room to grow: preemptions, work done twice",
            _falls("preemptions", "recompute_share"),
        ),
        larger=Cell("memory is kept for answers that are short: fewer rows at once", _falls("kv_mean", "mean_batch")),
        advice="about as many blocks as a usual answer fills, if preemptions are frequent; else leave it at 0",
        values=(0, 1, 2, 4, 6, 8, 12, 16),
        fixed={"max_num_seqs": 32, "max_num_batched_tokens": 256, "admission": "none"},
        num_blocks=192,
    ),
    Row(
        parameter="max_model_len",
        family="continuous",
        meaning="prompt and output of one sequence, at most; the contiguous allocator reserves all of it for each row",
        smaller=Cell("long requests are refused", _falls("rejected")),
        larger=Cell(
            "each row reserves more KV and writes the same: fewer rows at once, fewer tokens/s",
            (*_rises("kv_unused"), *_falls("mean_batch", "output_tokens_per_s", load=AT_ONCE)),
        ),
        advice="the real upper bound of prompt and output, and no more",
        values=(192, 256, 384, 512, 768, 1024, 1536),
        fixed={"kv_allocator": "contiguous", "max_num_seqs": 32, "max_num_batched_tokens": 256},
        num_blocks=768,
    ),
    Row(
        parameter="batch_size",
        family="static",
        meaning="sequences of a batch",
        smaller=Cell(
            "few rows share a step: fewer tokens/s",
            (*_rises("output_tokens_per_s"), *_rises("output_tokens_per_s", workload="alike")),
        ),
        larger=Cell(
            "more memory, in the end too much (here such a batch leaves with fewer rows); more of the work is rows "
            "that wait for the longest of their batch; with little traffic, callers wait for the batch to fill",
            (
                *_rises("kv_peak", "straggler_share"),
                *_rises("queue_p50_s", "ttft_p50_s", load=LIGHT),
            ),
        ),
        advice="so that a batch of the longest inputs and outputs fits the memory; with mixed lengths far less",
        values=(1, 2, 4, 8, 16, 32),
    ),
    Row(
        parameter="max_batch_size",
        family="dynamic",
        meaning="sequences of a batch, at most",
        smaller=Cell(
            "few rows share a step: fewer tokens/s",
            (*_rises("mean_batch", "output_tokens_per_s"), *_rises("output_tokens_per_s", workload="alike")),
        ),
        larger=Cell(
            "more memory; each token comes later; more of the work is rows that wait for the longest of their batch",
            _rises("kv_peak", "tpot_p50_s", "straggler_share"),
        ),
        advice="where tokens/s are highest: the plateau if requests are alike, far less if their lengths differ much",
        values=(1, 2, 4, 8, 16, 32),
        fixed={"max_wait_ms": 50.0},
    ),
    Row(
        parameter="max_wait_ms",
        family="dynamic",
        meaning="how long the oldest waits for others to share its batch",
        smaller=Cell(
            "small batches: the engine needs more time for each token",
            (
                *_rises("mean_batch", "output_tokens_per_busy_s", load=LIGHT),
                *_rises("mean_batch", load=0.8),
                *_rises("output_tokens_per_busy_s", load=LIGHT, workload="short_alike"),
            ),
        ),
        larger=Cell(
            "callers wait, whether or not others come",
            _rises("queue_p50_s", "ttft_p50_s", load=LIGHT),
        ),
        advice="from the latency that the business allows; 0 where the engine is busy anyway",
        values=(0.0, 1.0, 5.0, 10.0, 50.0, 200.0),
        fixed={"max_batch_size": 16},
        workload="short",
    ),
    Row(
        parameter="length_bins",
        family="dynamic",
        meaning="only prompts of the same bin share a batch; so many bounds between bins",
        smaller=Cell("short prompts are padded up to long ones", _falls("padding_share")),
        larger=Cell(
            "less padding; each bin has fewer to fill a batch with: smaller batches while traffic is light",
            (*_falls("padding_share"), *_falls("mean_batch", load=0.25)),
        ),
        advice="two or three, at the quartiles of the prompts; more where prompts are much longer than answers",
        values=((), (96,), (48, 192), (48, 96, 192), (32, 64, 96, 192, 384)),
        fixed={"max_batch_size": 16, "max_wait_ms": 50.0},
        workload="long_prompts",
    ),
)
