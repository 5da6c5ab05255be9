"""Every metric once: its Prometheus name, its unit, its formula, and one sentence for people.

The times of a request, all on one monotonic clock:

    arrival ──queue──► first step starts ──prefill──► first token ──decode──► last token
                                                           └─emit─► first byte handed to the socket
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What Prometheus does with the samples."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. ``buckets`` are the upper bounds of a histogram, in ``unit``."""

    name: str
    kind: Kind
    unit: str
    formula: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


_LATENCY_BUCKETS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0,
)  # fmt: skip
_GAP_BUCKETS_S = (
    0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 10.0,
)  # fmt: skip
_POWERS_OF_TWO = tuple(float(2**power) for power in range(15))


def _histogram(
    name: str, unit: str, buckets: tuple[float, ...], formula: str, help_text: str, labels: tuple[str, ...] = ()
) -> Metric:
    return Metric(name, Kind.HISTOGRAM, unit, formula, help_text, labels, buckets)


TTFT = _histogram(
    "inflight_time_to_first_token_seconds",
    "s",
    _LATENCY_BUCKETS_S,
    "queue + prefill + emit",
    "From the arrival of the whole request until its first token was handed to the socket (or, without streaming, "
    "reached the server). A chunk that holds only a role does not count.",
)
QUEUE = _histogram(
    "inflight_queue_time_seconds",
    "s",
    _LATENCY_BUCKETS_S,
    "start of the first step that runs a token of the request - arrival",
    "How long requests waited before their first step.",
)
PREFILL = _histogram(
    "inflight_prefill_time_seconds",
    "s",
    _LATENCY_BUCKETS_S,
    "end of the step that gave the first token - start of the first step",
    "How long prompts took, with any preemption on the way.",
)
EMIT = _histogram(
    "inflight_emit_time_seconds",
    "s",
    _GAP_BUCKETS_S,
    "first token handed to the socket - end of the step that gave it",
    "What detokenising, crossing processes and writing add to the first token.",
)
ITL = _histogram(
    "inflight_inter_token_latency_seconds",
    "s",
    _GAP_BUCKETS_S,
    "end of the step that gave a token - end of the step that gave the one before it; k tokens of one step share the "
    "gap before them: k samples of gap / k (after a first token in the same step, of 0)",
    "One sample per gap between two tokens of a sequence; preempted=true where the sequence lost its place in between.",
    labels=("preempted",),
)
TPOT = _histogram(
    "inflight_time_per_output_token_seconds",
    "s",
    _GAP_BUCKETS_S,
    "(last token - first token) / (n - 1) for a sequence of n tokens; undefined, and absent, for n = 1",
    "Mean seconds per token of a finished sequence after its first.",
)
E2E = _histogram(
    "inflight_e2e_request_latency_seconds",
    "s",
    _LATENCY_BUCKETS_S,
    "last byte handed to the socket - arrival",
    "The whole life of a finished request.",
)
BATCH_SIZE = _histogram(
    "inflight_batch_size_sequences",
    "sequences",
    _POWERS_OF_TWO[:11],
    "rows of a step; one sample per step",
    "How many sequences shared each forward pass.",
)
BATCH_TOKENS = _histogram(
    "inflight_batch_size_tokens",
    "tokens",
    _POWERS_OF_TWO,
    "query tokens of a step; one sample per step",
    "How many tokens of sequences each forward pass ran; pads are not counted.",
)
PREEMPTIONS = Metric(
    "inflight_preemptions_total",
    Kind.COUNTER,
    "preemptions",
    "sequences that lost their blocks to others; mode=swap: their KV moved to the host tier, mode=recompute: it is "
    "computed again, unless the prefix cache still has it",
    "Preemptions, by what became of the KV.",
    labels=("mode",),
)
TOKENS_LOST = Metric(
    "inflight_preempted_tokens_total",
    Kind.COUNTER,
    "tokens",
    "sum over preemptions of the tokens whose KV was stored; 0 for one that was swapped out, unless that step failed",
    "Tokens whose KV preempted sequences gave up; those that were computed again are recompute in the wasted slots.",
)
PREFIX_QUERIES = Metric(
    "inflight_prefix_cache_queries_total",
    Kind.COUNTER,
    "tokens",
    "prompt tokens of sequences, counted when a sequence enters for the first time; none without a prefix cache",
    "Prompt tokens that were looked up in the prefix cache.",
)
PREFIX_HITS = Metric(
    "inflight_prefix_cache_hits_total",
    Kind.COUNTER,
    "tokens",
    "of the tokens looked up, those whose KV was there and was not computed",
    "Prompt tokens that were found in the prefix cache; over the queries, the hit rate.",
)
PREFIX_EVICTED = Metric(
    "inflight_prefix_cache_evicted_blocks_total",
    Kind.COUNTER,
    "blocks",
    "blocks of findable prefixes that nobody held and that were given to new tokens",
    "Blocks that the prefix cache gave up.",
)
SWAPPED_BLOCKS = Metric(
    "inflight_swapped_blocks_total",
    Kind.COUNTER,
    "blocks",
    "blocks copied in steps that ended well: direction=out, to the host tier; direction=in, from it",
    "KV blocks that were swapped.",
    labels=("direction",),
)
SWAPPED_BYTES = Metric(
    "inflight_swapped_bytes_total",
    Kind.COUNTER,
    "bytes",
    "swapped blocks x the bytes of a block, scales included",
    "KV bytes that were swapped.",
    labels=("direction",),
)
SWAP_SECONDS = Metric(
    "inflight_swap_seconds_total",
    Kind.COUNTER,
    "s",
    "of the durations of steps, what copying blocks took, both directions together",
    "Time spent on swapping.",
)
PROMPT_TOKENS = Metric(
    "inflight_prompt_tokens_total",
    Kind.COUNTER,
    "tokens",
    "sum of the prompt lengths of requests, each counted once at its first token",
    "Tokens in.",
)
OUTPUT_TOKENS = Metric(
    "inflight_generation_tokens_total",
    Kind.COUNTER,
    "tokens",
    "sum of the tokens given to callers, over all choices",
    "Tokens out.",
)
REQUESTS = Metric(
    "inflight_requests_total",
    Kind.COUNTER,
    "requests",
    "requests that the engine was asked for and that have ended, by outcome: stop, length (any choice ended by "
    "length), aborted, failed (any choice failed), rejected; reason is set for rejected, and is engine_lost for what "
    "went down with an engine: failed, or aborted where its caller had already given it up",
    "Ended requests by outcome.",
    labels=("outcome", "reason"),
)
ENGINE_LOSSES = Metric(
    "inflight_engine_losses_total",
    Kind.COUNTER,
    "engines",
    "engine processes that died, failed or hung; one is started again while --max-restarts allows",
    "Engines that were lost.",
)
SLO_REQUESTS = Metric(
    "inflight_slo_requests_total",
    Kind.COUNTER,
    "requests",
    "requests that the engine was asked for and that have ended: met=true for those that finished with TTFT, TPOT (of "
    "the slowest choice) and end-to-end latency, as the server handed tokens on, all within the bounds of --slo, a "
    "TPOT that is undefined with them; met=false for all others: late, aborted, failed, rejected. Absent without --slo",
    "Ended requests by whether they kept the service level objective; goodput is the rate of those that did.",
    labels=("met",),
)
USEFUL_SLOTS = Metric(
    "inflight_useful_slot_steps_total",
    Kind.COUNTER,
    "row-slots",
    "tokens of the steps that ended, each run for the first time: prefill for prompt tokens, decode for later ones",
    "Row-slots that were computed to some use.",
    labels=("kind",),
)
WASTED_SLOTS = Metric(
    "inflight_wasted_slot_steps_total",
    Kind.COUNTER,
    "row-slots",
    "computed: padding (pad tokens of rows that run), straggler (tokens of rows whose sequence had ended), recompute "
    "(tokens of places that their sequences had passed before a preemption, or of a step that failed); not computed: "
    "empty (seats without a row, one for each step)",
    "Row-slots that served nobody, by cause; with the useful ones, empty left out, all that was computed.",
    labels=("cause",),
)
SEAT_STEPS = Metric(
    "inflight_seat_steps_total",
    Kind.COUNTER,
    "seats",
    "seats x steps that ended",
    "What the empty seats are a share of.",
)
RUNNING = Metric(
    "inflight_num_seqs_running",
    Kind.GAUGE,
    "sequences",
    "sequences that hold a seat",
    "Sequences that run now.",
)
WAITING = Metric(
    "inflight_num_seqs_waiting",
    Kind.GAUGE,
    "sequences",
    "sequences in the queue, preempted ones with them",
    "Sequences that wait now.",
)
LIVE = Metric(
    "inflight_num_requests_live",
    Kind.GAUGE,
    "requests",
    "received - finished - aborted - rejected - failed",
    "Requests in the engine now.",
)
KV_USAGE = Metric(
    "inflight_kv_cache_usage_ratio",
    Kind.GAUGE,
    "1",
    "allocated blocks / total blocks; a block is allocated while a sequence holds it, and counts once however many do",
    "Share of the KV blocks that sequences hold.",
)
KV_SLOT_USAGE = Metric(
    "inflight_kv_cache_slot_usage_ratio",
    Kind.GAUGE,
    "1",
    "stored tokens / (allocated blocks x block_size); 0 without allocated blocks",
    "Share of the allocated KV slots that is written.",
)
KV_FRAGMENTATION = Metric(
    "inflight_kv_cache_fragmentation_ratio",
    Kind.GAUGE,
    "1",
    "(allocated blocks x block_size - stored tokens) / (allocated blocks x block_size); 0 without allocated blocks",
    "Share of the allocated KV slots that is reserved and not written.",
)
KV_SHARED = Metric(
    "inflight_kv_cache_shared_blocks",
    Kind.GAUGE,
    "blocks",
    "blocks that two sequences or more hold",
    "KV blocks that sequences share.",
)
KV_CACHED = Metric(
    "inflight_kv_cache_cached_blocks",
    Kind.GAUGE,
    "blocks",
    "blocks that no sequence holds and that keep a prefix which can be found, until they are needed",
    "KV blocks of the prefix cache that nobody holds: free, and of use.",
)
KV_HOST_USAGE = Metric(
    "inflight_kv_host_usage_ratio",
    Kind.GAUGE,
    "1",
    "host blocks of preempted sequences / host blocks; 0 without a host tier",
    "Share of the host tier that is taken.",
)

ALL: tuple[Metric, ...] = (
    TTFT, QUEUE, PREFILL, EMIT, ITL, TPOT, E2E, BATCH_SIZE, BATCH_TOKENS, PREEMPTIONS, TOKENS_LOST, PREFIX_QUERIES,
    PREFIX_HITS, PREFIX_EVICTED, SWAPPED_BLOCKS, SWAPPED_BYTES, SWAP_SECONDS, PROMPT_TOKENS, OUTPUT_TOKENS, REQUESTS,
    ENGINE_LOSSES, SLO_REQUESTS, USEFUL_SLOTS, WASTED_SLOTS, SEAT_STEPS, RUNNING, WAITING, LIVE, KV_USAGE,
    KV_SLOT_USAGE, KV_FRAGMENTATION, KV_SHARED, KV_CACHED, KV_HOST_USAGE,
)  # fmt: skip
