"""Outcomes written by hand."""

from __future__ import annotations

from inflight.bench.outcome import Arrival, ErrorKind, Outcome, RequestError


def outcome(
    item_id: str,
    sent_s: float,
    arrivals: list[tuple[float, int]],
    end_s: float,
    num_prompt_tokens: int = 10,
    **others,
) -> Outcome:
    """Sent when it was due, and due when it was scheduled, unless ``others`` say so."""
    times = {"scheduled_s": sent_s, "due_s": sent_s} | others
    return Outcome(
        item_id=item_id,
        num_prompt_tokens=num_prompt_tokens,
        sent_s=sent_s,
        arrivals=tuple(Arrival(*one) for one in arrivals),
        end_s=end_s,
        **times,
    )


def failure(item_id: str, sent_s: float, end_s: float, kind: ErrorKind = ErrorKind.TIMEOUT, **others) -> Outcome:
    return outcome(item_id, sent_s, [], end_s, error=RequestError(kind, "as written"), **others)


HAND = [  # seconds that are exact in binary
    # TTFT 0.5, TPOT 0.25, ITL 0.25 0.5 0.125 0.125, E2E 1.75; 5 tokens, two of them in one chunk
    outcome("a", 0.0, [(0.5, 1), (0.75, 1), (1.25, 1), (1.5, 2)], 1.75, num_prompt_tokens=10, text="abcde"),
    # TTFT 0.25, TPOT 0.25, ITL 0.0 0.5, E2E 1.0; 3 tokens, two of them in the first chunk
    outcome("b", 1.0, [(1.25, 2), (1.75, 1)], 2.0, num_prompt_tokens=20, text="fgh"),
    # TTFT 1.0, no TPOT, no ITL, E2E 1.0; one token; sent 0.125 late
    outcome("c", 1.125, [(2.125, 1)], 2.125, num_prompt_tokens=30, scheduled_s=0.5, due_s=1.0, counted=False, text="i"),
    failure("d", 2.0, 4.0),
]
