"""The settings of a workload; ``workload/build.py`` makes its requests."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from inflight.workload import arrivals
from inflight.workload.lengths import FORMS, parse_lengths
from inflight.workload.trace import FORMATS

DRAWN_REQUESTS, DRAWN_PROMPT_TOKENS, DRAWN_OUTPUT_TOKENS = 16, "200", "86"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadConfig:
    """The workload. Raises ``ValueError`` for values out of range or at odds with each other."""

    trace: Path | None = field(
        default=None, metadata={"help": "a file of arrivals and lengths, .gz too; none: both are drawn"}
    )
    trace_format: str = field(default="jsonl", metadata={"help": "what wrote the trace", "choices": tuple(FORMATS)})
    prompts: Path | None = field(
        default=None,
        metadata={
            "help": "real prompts, JSON lines of turns, prompt or question, .gz too; without a trace and "
            "--prompt-tokens each is one request, else they are the text that prompts are cut from; none: random tokens"
        },
    )
    num_requests: int | None = field(
        default=None,
        metadata={
            "help": "the first requests only, from 1; none: all of the file; without one "
            f"{DRAWN_REQUESTS}, or what the command says"
        },
    )
    prompt_tokens: str | None = field(
        default=None,
        metadata={
            "help": f"lengths of prompts without a trace: {FORMS}; none: as the prompts are, or {DRAWN_PROMPT_TOKENS}"
        },
    )
    output_tokens: str | None = field(
        default=None,
        metadata={"help": f"lengths of outputs without a trace, likewise; none: {DRAWN_OUTPUT_TOKENS}"},
    )
    length_scale: float = field(default=1.0, metadata={"help": "every length is multiplied by it; above 0"})
    request_rate: float | None = field(
        default=None,
        metadata={"help": "requests/s on average, above 0, inf: all at once; none: as in the trace, or all at once"},
    )
    arrival: str | None = field(
        default=None,
        metadata={
            "help": "how requests arrive; none: replay with a trace, else poisson, or gamma with a burstiness",
            "choices": arrivals.ARRIVALS,
        },
    )
    burstiness: float = field(
        default=1.0, metadata={"help": "gamma's shape, above 0: 1 is Poisson, below is burstier, above more regular"}
    )
    on_s: float = field(default=5.0, metadata={"help": "seconds of a burst of on_off, above 0"})
    off_s: float = field(default=5.0, metadata={"help": "seconds between two bursts of on_off, from 0"})
    seed: int = field(default=0, metadata={"help": "of everything that is drawn"})

    def __post_init__(self) -> None:
        if self.num_requests is not None and self.num_requests < 1:
            raise ValueError(f"num_requests must be at least 1, got {self.num_requests}")
        for name in ("length_scale", "burstiness", "on_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be above 0 and finite, got {getattr(self, name)}")
        if not 0 <= self.off_s < math.inf:
            raise ValueError(f"off_s must be at least 0 and finite, got {self.off_s}")
        if self.request_rate is not None and not self.request_rate > 0:
            raise ValueError(f"request_rate must be above 0, got {self.request_rate}")
        for lengths in (self.prompt_tokens, self.output_tokens):
            if lengths is not None:
                parse_lengths(lengths)
                if self.trace is not None:
                    raise ValueError("a trace has its own lengths: prompt_tokens and output_tokens are for none")
        if self.arrival not in (None, *arrivals.ARRIVALS):
            raise ValueError(f"arrival must be one of {', '.join(arrivals.ARRIVALS)}, got {self.arrival!r}")
        if self.arrival == "replay" and self.trace is None:
            raise ValueError("arrival replay takes the times of a trace, and there is none")
        if self.arrival not in (None, "replay") and self.request_rate is None:
            raise ValueError(f"arrival {self.arrival} needs a request_rate")
        if self.burstiness != 1.0 and self.arrival_used != "gamma":
            raise ValueError("burstiness is for arrival gamma, which needs a request_rate")

    @property
    def arrival_used(self) -> str | None:
        """How requests arrive; None: all at once."""
        if self.arrival is not None:
            return self.arrival
        if self.trace is not None:
            return "replay"
        if self.request_rate is None:
            return None
        return "poisson" if self.burstiness == 1.0 else "gamma"
