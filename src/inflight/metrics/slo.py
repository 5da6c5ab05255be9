"""A service level objective: what a request must keep to be a good one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

SLO_HELP = "what a good request keeps, in seconds: any of ttft:0.5 tpot:0.1 e2el:5"
_METRICS = ("ttft", "tpot", "e2el")  # as vLLM's ``--goodput`` has them


class Ended(Protocol):
    """A request that has ended, as its caller saw it. A time that never came to be, or is not defined, is None."""

    @property
    def ttft_s(self) -> float | None:
        """Time to first token."""

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; not defined for one token."""

    @property
    def e2el_s(self) -> float | None:
        """End-to-end latency."""

    @property
    def error(self) -> object | None:
        """Why it has no complete answer; None: it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Upper bounds in seconds, themselves allowed; None: no bound. A request that failed keeps none of them."""

    ttft_s: float | None = None
    tpot_s: float | None = None  # kept by a request of one token, which has no TPOT
    e2el_s: float | None = None

    @classmethod
    def parse(cls, pairs: Iterable[str]) -> Slo | None:
        """Read ``ttft:0.5 tpot:0.1 e2el:5``, in seconds. None if there is none.

        Raises ``ValueError`` for another metric, one that is given twice, and for a bound that is no number above 0.
        """
        bounds: dict[str, float] = {}
        for pair in pairs:
            name, _, text = pair.partition(":")
            if name not in _METRICS:
                raise ValueError(f"slo takes ttft:S, tpot:S and e2el:S, in seconds; got {pair!r}")
            if f"{name}_s" in bounds:
                raise ValueError(f"slo has {name} twice")
            try:
                bound_s = float(text)
            except ValueError:
                bound_s = math.nan
            if not 0 < bound_s < math.inf:
                raise ValueError(f"slo {name} must be a number of seconds above 0, got {text!r}")
            bounds[f"{name}_s"] = bound_s
        return cls(**bounds) if bounds else None

    def met_by(self, request: Ended) -> bool:
        """True if the request was answered and kept every bound that is set."""
        pairs = ((request.ttft_s, self.ttft_s), (request.tpot_s, self.tpot_s), (request.e2el_s, self.e2el_s))
        return request.error is None and all(value is None or bound is None or value <= bound for value, bound in pairs)

    def __str__(self) -> str:
        named = (("ttft", self.ttft_s), ("tpot", self.tpot_s), ("e2el", self.e2el_s))
        return ", ".join(f"{name} <= {bound:g} s" for name, bound in named if bound is not None)
