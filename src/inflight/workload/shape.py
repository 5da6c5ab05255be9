"""A trace made to fit: shorter or longer requests, another rate, other arrivals, no more tokens than a model takes.

Each function returns a new trace, with a note of what was done.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from inflight.workload.trace import Trace, TraceRequest


def scale_lengths(trace: Trace, factor: float) -> Trace:
    """Multiply every prompt's and output's length, rounded, at least 1 token and below 2^31.

    A block of a shared prefix is scaled as a whole, and what follows the whole blocks by itself: requests share as
    many blocks as before, and the length of a prompt of blocks is off by up to half a token for each of them.
    Raises ``ValueError`` for a factor that is not above 0 or not finite.
    """
    if not 0 < factor < math.inf:
        raise ValueError(f"a factor of lengths is above 0 and finite, got {factor}")

    def scaled(num_tokens: int) -> int:
        return max(round(min(num_tokens * factor, 2**31 - 1)), 1)

    def shaped(request: TraceRequest) -> TraceRequest:
        num_prompt_tokens = scaled(request.num_prompt_tokens)
        if request.prefix_ids:
            whole, rest = divmod(request.num_prompt_tokens, request.prefix_block_tokens)
            num_prompt_tokens = whole * scaled(request.prefix_block_tokens) + (scaled(rest) if rest else 0)
        return replace(
            request,
            num_prompt_tokens=num_prompt_tokens,
            num_output_tokens=scaled(request.num_output_tokens),
            prefix_block_tokens=scaled(request.prefix_block_tokens) if request.prefix_ids else 0,
        )

    return Trace(tuple(map(shaped, trace)), (*trace.notes, f"lengths x {factor:g}"))


def scale_rate(trace: Trace, rate_per_s: float) -> Trace:
    """Stretch all gaps between arrivals alike, so that the mean rate is as asked; infinite: all at once.

    Raises ``ValueError`` for a rate that is not above 0, and for requests that all arrive at once.
    """
    if not rate_per_s > 0:
        raise ValueError(f"a rate is above 0 requests/s, got {rate_per_s}")
    span_s, wanted_s = trace.span_s, (len(trace) - 1) / rate_per_s
    if wanted_s == 0:
        return arrive_at(trace, [0.0] * len(trace), "arrivals all at once")
    if span_s == 0:
        raise ValueError("the requests of the trace arrive all at once: there is no rate to scale")
    first_s = trace.requests[0].arrival_s
    times = [(request.arrival_s - first_s) / span_s * wanted_s for request in trace]
    return arrive_at(trace, times, f"gaps x {wanted_s / span_s:.4g}")


def arrive_at(trace: Trace, arrivals_s: Sequence[float], note: str) -> Trace:
    """Give the requests, in their order, other times. Raises ``ValueError`` if there are too few, too many,
    or some out of order.
    """
    requests = (replace(one, arrival_s=when) for one, when in zip(trace, arrivals_s, strict=True))
    return Trace(tuple(requests), (*trace.notes, note))


def clip(trace: Trace, max_model_len: int) -> Trace:
    """Shorten each request whose prompt and output are more than ``max_model_len`` tokens together; count them.

    The output keeps up to half of the tokens, more if the prompt leaves them; the prompt keeps the rest, from its
    start. Raises ``ValueError`` if there is not one token for each.
    """
    if max_model_len < 2:
        raise ValueError(f"max_model_len must be at least 2, one token in and one out, got {max_model_len}")

    def clipped(request: TraceRequest) -> TraceRequest:
        room = max(max_model_len - request.num_prompt_tokens, max_model_len // 2)
        num_output_tokens = min(request.num_output_tokens, room)
        num_prompt_tokens = min(request.num_prompt_tokens, max_model_len - num_output_tokens)
        return replace(request, num_prompt_tokens=num_prompt_tokens, num_output_tokens=num_output_tokens)

    too_long = [one.num_prompt_tokens + one.num_output_tokens > max_model_len for one in trace]
    requests = tuple(clipped(one) if long else one for one, long in zip(trace, too_long, strict=True))
    note = f"{sum(too_long):,} of {len(trace):,} shortened to {max_model_len:,} tokens"
    return Trace(requests, (*trace.notes, note)) if any(too_long) else trace
