"""The metrics as Prometheus reads them; lives in the server's process."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from inflight.core.errors import Reason
from inflight.core.output import SchedulerStats
from inflight.core.request import RequestId
from inflight.metrics import definitions as d
from inflight.metrics.delta import FirstToken, MetricsDelta, rise
from inflight.metrics.slo import Ended, Slo

_MAX_UNSENT = 10_000  # first tokens whose sending was not reported; the oldest are forgotten


class PrometheusMetrics:
    """All of ``definitions.ALL`` on a registry of its own, or on a given one. Not thread-safe across ``apply``.

    Without an ``slo`` there is no ``SLO_REQUESTS``: what nobody asked for is absent, and not 0.
    """

    def __init__(self, registry: CollectorRegistry | None = None, slo: Slo | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._ttft = self._histogram(d.TTFT)
        self._queue = self._histogram(d.QUEUE)
        self._prefill = self._histogram(d.PREFILL)
        self._emit = self._histogram(d.EMIT)
        itl = self._histogram(d.ITL)
        self._itl, self._itl_preempted = itl.labels("false"), itl.labels("true")
        self._tpot = self._histogram(d.TPOT)
        self._e2e = self._histogram(d.E2E)
        self._batch_rows = self._histogram(d.BATCH_SIZE)
        self._batch_tokens = self._histogram(d.BATCH_TOKENS)
        preemptions = self._counter(d.PREEMPTIONS)
        self._recomputed, self._swapped = preemptions.labels("recompute"), preemptions.labels("swap")
        self._tokens_lost = self._counter(d.TOKENS_LOST)
        self._by_stats = {
            "num_prefix_query_tokens": self._counter(d.PREFIX_QUERIES),
            "num_prefix_hit_tokens": self._counter(d.PREFIX_HITS),
            "num_evicted_blocks": self._counter(d.PREFIX_EVICTED),
        }  # by their names in ``SchedulerStats``
        blocks, num_bytes = self._counter(d.SWAPPED_BLOCKS), self._counter(d.SWAPPED_BYTES)
        self._swapped_blocks = {direction: blocks.labels(direction) for direction in ("out", "in")}
        self._swapped_bytes = {direction: num_bytes.labels(direction) for direction in ("out", "in")}
        self._swap_seconds = self._counter(d.SWAP_SECONDS)
        self._prompt_tokens = self._counter(d.PROMPT_TOKENS)
        self._output_tokens = self._counter(d.OUTPUT_TOKENS)
        self._requests = self._counter(d.REQUESTS)
        self._requests.labels("rejected", Reason.QUEUE_FULL.value)  # there from the start, for those who watch it rise
        self._engine_losses = self._counter(d.ENGINE_LOSSES)
        self._slo = slo
        if slo is not None:
            by_met = self._counter(d.SLO_REQUESTS)
            self._slo_requests = {met: by_met.labels(str(met).lower()) for met in (True, False)}
        useful, wasted = self._counter(d.USEFUL_SLOTS), self._counter(d.WASTED_SLOTS)
        self._slots = {
            **{kind: useful.labels(kind) for kind in ("prefill", "decode")},
            **{cause: wasted.labels(cause) for cause in ("padding", "straggler", "recompute", "empty")},
            "seat_steps": self._counter(d.SEAT_STEPS),
        }  # by their names in ``Slots``
        self._running = self._gauge(d.RUNNING)
        self._waiting = self._gauge(d.WAITING)
        self._live = self._gauge(d.LIVE)
        self._kv_usage = self._gauge(d.KV_USAGE)
        self._kv_slot_usage = self._gauge(d.KV_SLOT_USAGE)
        self._kv_fragmentation = self._gauge(d.KV_FRAGMENTATION)
        self._kv_shared = self._gauge(d.KV_SHARED)
        self._kv_cached = self._gauge(d.KV_CACHED)
        self._kv_host_usage = self._gauge(d.KV_HOST_USAGE)
        self._block_size, self._bytes_per_block = 1, 0
        self._stats: SchedulerStats | None = None  # the newest
        self._unsent: dict[RequestId, FirstToken] = {}

    def set_block_size(self, block_size: int, bytes_per_block: int) -> None:
        """Tell how many tokens a KV block holds, and how many bytes it takes, once the engine is known.

        They follow from options: an engine that is started again has the same.
        """
        self._block_size, self._bytes_per_block = block_size, bytes_per_block

    def apply(self, delta: MetricsDelta) -> None:
        """Take in what happened since the last delta."""
        for histogram, samples in (
            (self._batch_rows, delta.batch_rows),
            (self._batch_tokens, delta.batch_tokens),
            (self._itl, delta.itl_s),
            (self._itl_preempted, delta.itl_preempted_s),
        ):
            for sample in samples:
                histogram.observe(sample)
        for first in delta.first_tokens:
            self._queue.observe(first.queue_s)
            self._prefill.observe(first.prefill_s)
            self._unsent[first.request_id] = first
            if len(self._unsent) > _MAX_UNSENT:
                del self._unsent[next(iter(self._unsent))]
        self._prompt_tokens.inc(delta.num_prompt_tokens)
        self._output_tokens.inc(delta.num_output_tokens)
        self._recomputed.inc(delta.num_preemptions - delta.num_swapped_out)
        self._swapped.inc(delta.num_swapped_out)
        self._tokens_lost.inc(delta.num_tokens_lost)
        for direction, num_blocks in (("out", delta.num_blocks_out), ("in", delta.num_blocks_in)):
            self._swapped_blocks[direction].inc(num_blocks)
            self._swapped_bytes[direction].inc(num_blocks * self._bytes_per_block)
        self._swap_seconds.inc(delta.copies_s)
        self._engine_losses.inc(delta.num_engines_lost)
        for name, counter in self._slots.items():
            counter.inc(getattr(delta.slots, name))
        for reason in delta.rejected:
            self._requests.labels("rejected", reason.value).inc()
        if delta.num_lost:
            self._requests.labels("failed", "engine_lost").inc(delta.num_lost)
        if delta.num_lost_aborted:
            self._requests.labels("aborted", "engine_lost").inc(delta.num_lost_aborted)
        for record in delta.ended:
            self._requests.labels(record.outcome.value, "").inc()
            for tpot_s in record.tpot_s:
                self._tpot.observe(tpot_s)

    def apply_stats(self, stats: SchedulerStats) -> None:
        """Set the gauges, and let the counters rise that the scheduler keeps."""
        before, self._stats = self._stats, stats
        for name, counter in self._by_stats.items():
            counter.inc(rise(before, stats, name))
        num_allocated = stats.num_blocks - stats.num_free_blocks
        self._running.set(stats.num_running_seqs)
        self._waiting.set(stats.num_waiting_seqs)
        self._live.set(stats.live)
        num_slots = num_allocated * self._block_size
        self._kv_usage.set(_share(num_allocated, stats.num_blocks))
        self._kv_slot_usage.set(_share(stats.num_stored_tokens, num_slots))
        self._kv_fragmentation.set(_share(num_slots - stats.num_stored_tokens, num_slots))
        self._kv_shared.set(stats.num_shared_blocks)
        self._kv_cached.set(stats.num_cached_blocks)
        self._kv_host_usage.set(_share(stats.num_host_blocks - stats.num_free_host_blocks, stats.num_host_blocks))

    def first_token_sent(self, request_id: RequestId, arrival_s: float, now_s: float) -> None:
        """The first token of a request was handed to the socket, or to a caller who waits for the whole answer."""
        self._ttft.observe(now_s - arrival_s)
        first = self._unsent.pop(request_id, None)
        if first is not None:
            self._emit.observe(now_s - first.at_s)

    def request_ended(self, request: Ended) -> None:
        """The last byte of a request was handed on, or there will be none."""
        if request.error is None and request.e2el_s is not None:
            self._e2e.observe(request.e2el_s)
        if self._slo is not None:
            self._slo_requests[self._slo.met_by(request)].inc()

    def render(self) -> bytes:
        """The exposition text, for ``GET /metrics``."""
        return generate_latest(self.registry)

    def _histogram(self, metric: d.Metric) -> Histogram:
        return Histogram(metric.name, metric.help, metric.labels, buckets=metric.buckets, registry=self.registry)

    def _counter(self, metric: d.Metric) -> Counter:
        return Counter(metric.name, metric.help, metric.labels, registry=self.registry)

    def _gauge(self, metric: d.Metric) -> Gauge:
        return Gauge(metric.name, metric.help, metric.labels, registry=self.registry)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
