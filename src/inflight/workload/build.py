"""From the settings of a workload to its requests."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from inflight.workload import arrivals
from inflight.workload.config import DRAWN_OUTPUT_TOKENS, DRAWN_PROMPT_TOKENS, DRAWN_REQUESTS, WorkloadConfig
from inflight.workload.item import WorkItem, check_fits
from inflight.workload.lengths import draw_lengths, parse_lengths
from inflight.workload.prompts import make_prompts, random_pool, text_prompts
from inflight.workload.shape import arrive_at, clip, scale_lengths, scale_rate
from inflight.workload.trace import Encode, Trace, TraceRequest, describe, read_trace


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in the order of their arrival, and lines for people that belong to every result got with them."""

    items: list[WorkItem]
    notes: tuple[str, ...]


def build_workload(
    config: WorkloadConfig, vocab_size: int, max_model_len: int, encode: Encode | None = None
) -> Workload:
    """Make the requests; the same for the same settings. All of them fit a model of the given sizes.

    ``encode`` makes token ids of a text; prompts as text need it. Raises ``ValueError`` for a file that is not valid
    or has fewer requests than asked for, and for token ids that the model lacks; ``OSError`` for one that cannot be
    read.
    """
    draw = random.Random(config.seed)
    prompt_seed, output_seed, arrival_seed, text_seed = (draw.getrandbits(32) for _ in range(4))
    texts = None if config.prompts is None else _encoded(config.prompts, encode)
    if config.trace is not None:
        trace = read_trace(config.trace, config.trace_format, config.num_requests, encode)
    else:
        trace = _drawn(config, texts, prompt_seed, output_seed)
    if config.num_requests is not None and len(trace) < config.num_requests:
        raise ValueError(f"{config.trace or config.prompts} holds {len(trace)} requests, not {config.num_requests}")
    if config.length_scale != 1.0:
        trace = scale_lengths(trace, config.length_scale)
    trace = clip(_timed(config, trace, arrival_seed), max_model_len)
    pool = [token_id for text in texts for token_id in text] if texts else random_pool(vocab_size, text_seed)
    items = make_prompts(trace, pool, text_seed)
    check_fits(items, vocab_size, max_model_len)
    return Workload(items, (describe(trace), _origin(config, trace)))


def _encoded(path: Path, encode: Encode | None) -> list[list[int]]:
    if encode is None:
        raise ValueError(f"{path} holds prompts as text, which need a tokenizer")
    return [encode(text) for text in text_prompts(path)]


def _drawn(config: WorkloadConfig, texts: Sequence[list[int]] | None, prompt_seed: int, output_seed: int) -> Trace:
    """A trace where there is none: of the prompts as they are, or of lengths that are drawn."""
    if texts is not None and config.prompt_tokens is None:
        prompts = [tuple(text) for text in texts[: config.num_requests]]
        lengths, note = [len(prompt) for prompt in prompts], "prompts as long as they are"
    else:
        prompts = []
        spec = config.prompt_tokens or DRAWN_PROMPT_TOKENS
        lengths = draw_lengths(parse_lengths(spec), config.num_requests or DRAWN_REQUESTS, prompt_seed)
        note = f"prompt tokens {spec}"
    spec = config.output_tokens or DRAWN_OUTPUT_TOKENS
    outputs = draw_lengths(parse_lengths(spec), len(lengths), output_seed)
    requests = (
        TraceRequest(0.0, length, output, prompt_token_ids=prompts[index] if prompts else None)
        for index, (length, output) in enumerate(zip(lengths, outputs, strict=True))
    )
    return Trace(tuple(requests), (f"{note}, output tokens {spec}",))


def _timed(config: WorkloadConfig, trace: Trace, seed: int) -> Trace:
    rate = config.request_rate
    if rate is None:
        return trace
    match config.arrival_used:
        case "replay":
            return scale_rate(trace, rate)
        case "constant":
            times, note = arrivals.constant(len(trace), rate), "constant"
        case "on_off":
            times = arrivals.on_off(len(trace), rate, config.on_s, config.off_s, seed)
            note = f"on for {config.on_s:g} s, off for {config.off_s:g} s"
        case _:
            times = arrivals.gamma(len(trace), rate, config.burstiness, seed)
            note = "poisson" if config.burstiness == 1.0 else f"gamma of burstiness {config.burstiness:g}"
    return arrive_at(trace, times, f"arrivals {note}, {rate:g}/s")


def _origin(config: WorkloadConfig, trace: Trace) -> str:
    if all(request.prompt_token_ids is not None for request in trace):
        return f"prompts: those of {(config.trace or config.prompts or Path()).name}"
    kind = "random token ids" if config.prompts is None else f"cut from {config.prompts.name}"
    return f"prompts: {kind}, seed {config.seed}"
