"""The log: one line per period for people, one JSON record per request for machines."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from inflight.core.output import SchedulerStats
from inflight.core.request import TokenId
from inflight.metrics.alarm import KVAlarm
from inflight.metrics.delta import MetricsDelta, RequestRecord, rise
from inflight.metrics.prometheus import PrometheusMetrics
from inflight.metrics.summary import describe

logger = logging.getLogger(__name__)
request_logger = logging.getLogger("inflight.request")

MAX_SAMPLES = 100_000  # of each kind in a period


class Reporter:
    """Takes every delta of an engine: to Prometheus, to one record per ended request, and to the next period's line.

    ``decode_prompt`` puts the prompt's text into the records, of engines whose collector keeps the prompts; without
    it no content is logged.
    """

    def __init__(
        self, metrics: PrometheusMetrics, decode_prompt: Callable[[Sequence[TokenId]], str] | None = None
    ) -> None:
        self.metrics = metrics
        self._decode_prompt = decode_prompt
        self._stats: SchedulerStats | None = None
        self._alarm = KVAlarm()
        self._period = Period()
        self._period_start_s: float | None = None

    def __call__(self, delta: MetricsDelta, stats: SchedulerStats) -> None:
        """Take in a delta and the state after it."""
        self.metrics.apply(delta)
        self.metrics.apply_stats(stats)
        self._alarm.watch(stats)
        if delta != _NOTHING:
            self._period.add(delta)
        self._period.num_prefix_query_tokens += rise(self._stats, stats, "num_prefix_query_tokens")
        self._period.num_prefix_hit_tokens += rise(self._stats, stats, "num_prefix_hit_tokens")
        self._stats = stats
        for record in delta.ended:
            request_logger.info("%s", to_json(record, self._decode_prompt))

    def log_period(self, now_s: float) -> None:
        """Log the period since the last call, unless nothing happened in it and nothing runs or waits."""
        self._alarm.end_period()
        start_s, self._period_start_s = self._period_start_s, now_s
        period, self._period = self._period, Period()
        stats = self._stats
        if start_s is None or stats is None or not (period.num_deltas or stats.live):
            return
        logger.info("%s", period_line(period, stats, now_s - start_s))


@dataclass(slots=True)
class Period:
    """What the line of a period needs: sums, and the newest ``MAX_SAMPLES`` latencies however long the period is."""

    num_deltas: int = 0
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_preemptions: int = 0
    num_blocks_out: int = 0
    num_blocks_in: int = 0
    copies_s: float = 0.0
    num_prefix_query_tokens: int = 0
    num_prefix_hit_tokens: int = 0
    ttft_s: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_SAMPLES))
    itl_s: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_SAMPLES))

    def add(self, delta: MetricsDelta) -> None:
        """Take in a delta."""
        self.num_deltas += 1
        self.num_prompt_tokens += delta.num_prompt_tokens
        self.num_output_tokens += delta.num_output_tokens
        self.num_preemptions += delta.num_preemptions
        self.num_blocks_out += delta.num_blocks_out
        self.num_blocks_in += delta.num_blocks_in
        self.copies_s += delta.copies_s
        self.ttft_s.extend(first.queue_s + first.prefill_s for first in delta.first_tokens)
        self.itl_s.extend(delta.itl_s)
        self.itl_s.extend(delta.itl_preempted_s)


def period_line(period: Period, stats: SchedulerStats, duration_s: float) -> str:
    """What happened in ``duration_s`` seconds, in one line; what did not happen at all is left out."""
    num_allocated = stats.num_blocks - stats.num_free_blocks
    sometimes = []
    if period.num_prefix_hit_tokens:
        share = 100.0 * period.num_prefix_hit_tokens / period.num_prefix_query_tokens
        sometimes.append(f"prefix hits: {share:.1f} % of {period.num_prefix_query_tokens} tokens")
    if period.num_preemptions:
        sometimes.append(f"preemptions: {period.num_preemptions} (total {stats.num_preemptions})")
    if period.num_blocks_out or period.num_blocks_in:
        copies_ms = 1000 * period.copies_s
        sometimes.append(f"swapped: {period.num_blocks_out} blocks out, {period.num_blocks_in} in, {copies_ms:.1f} ms")
    return ", ".join(
        (
            f"running: {stats.num_running_seqs}",
            f"waiting: {stats.num_waiting_seqs}",
            f"prompt: {period.num_prompt_tokens / duration_s:.1f} tokens/s",
            f"output: {period.num_output_tokens / duration_s:.1f} tokens/s",
            f"KV usage: {100.0 * num_allocated / max(stats.num_blocks, 1):.1f} %",
            *sometimes,
            describe("TTFT", period.ttft_s),
            describe("ITL", period.itl_s),
        )
    )


def to_json(record: RequestRecord, decode_prompt: Callable[[Sequence[TokenId]], str] | None = None) -> str:
    """A record as one line of JSON; the prompt as text, if it may be decoded, and never as token ids."""
    fields = msgspec.to_builtins(record)
    prompt_token_ids = fields.pop("prompt_token_ids")
    if decode_prompt is not None:
        fields["prompt"] = decode_prompt(prompt_token_ids)
    return msgspec.json.encode(fields).decode()


_NOTHING = MetricsDelta()
