"""The log: one line per period for people, one JSON record per request for machines."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import msgspec

from inflight.core.output import SchedulerStats
from inflight.core.request import TokenId
from inflight.metrics.delta import MetricsDelta, RequestRecord
from inflight.metrics.prometheus import PrometheusMetrics
from inflight.metrics.summary import describe

logger = logging.getLogger(__name__)
request_logger = logging.getLogger("inflight.request")


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
        self._period: list[MetricsDelta] = []
        self._period_start_s: float | None = None

    def __call__(self, delta: MetricsDelta, stats: SchedulerStats) -> None:
        """Take in a delta and the state after it."""
        self.metrics.apply(delta)
        self.metrics.apply_stats(stats)
        self._stats = stats
        if delta != _NOTHING:
            self._period.append(delta)
        for record in delta.ended:
            request_logger.info("%s", to_json(record, self._decode_prompt))

    def log_period(self, now_s: float) -> None:
        """Log the period since the last call, unless nothing happened in it and nothing runs or waits."""
        start_s, self._period_start_s = self._period_start_s, now_s
        period, self._period = self._period, []
        stats = self._stats
        if start_s is None or stats is None or not (period or stats.live):
            return
        logger.info("%s", period_line(period, stats, now_s - start_s))


def period_line(period: Sequence[MetricsDelta], stats: SchedulerStats, duration_s: float) -> str:
    """What happened in ``duration_s`` seconds, in one line."""
    prompt_tokens_per_s = sum(delta.num_prompt_tokens for delta in period) / duration_s
    output_tokens_per_s = sum(delta.num_output_tokens for delta in period) / duration_s
    num_allocated = stats.num_blocks - stats.num_free_blocks
    return ", ".join(
        (
            f"running: {stats.num_running_seqs}",
            f"waiting: {stats.num_waiting_seqs}",
            f"prompt: {prompt_tokens_per_s:.1f} tokens/s",
            f"output: {output_tokens_per_s:.1f} tokens/s",
            f"KV usage: {100.0 * num_allocated / max(stats.num_blocks, 1):.1f} %",
            f"preemptions: {sum(delta.num_preemptions for delta in period)} (total {stats.num_preemptions})",
            describe("TTFT", [first.queue_s + first.prefill_s for delta in period for first in delta.first_tokens]),
            describe("ITL", [gap_s for delta in period for gap_s in delta.itl_s + delta.itl_preempted_s]),
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
