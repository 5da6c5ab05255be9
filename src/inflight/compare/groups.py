"""Short and long requests, told apart by how many tokens they ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inflight.metrics.summary import summarize
from inflight.workload.item import WorkItem


@dataclass(frozen=True, slots=True)
class Groups:
    """The bounds, in new tokens, and the ids of the requests within them; both of nearest rank.

    Short is at most the median. Long is the top decile, from ``long_from`` on, as far as that is above the median.
    """

    short_up_to: int
    long_from: int
    members: dict[str, frozenset[str]]  # all, short, long

    def as_text(self) -> str:
        """The definition, for people."""
        short, long = len(self.members["short"]), len(self.members["long"])
        return (
            f"short: at most {self.short_up_to} new tokens, the median ({short} requests); "
            f"long: from {self.long_from} new tokens on, the top decile ({long} requests)"
        )


def group(items: Sequence[WorkItem]) -> Groups:
    """Tell the requests of a workload apart."""
    summary = summarize([item.max_tokens for item in items])
    median, decile = int(summary.p50 or 0), int(summary.p90 or 0)
    long_from = max(decile, median + 1)
    return Groups(
        median,
        long_from,
        {
            "all": frozenset(item.item_id for item in items),
            "short": frozenset(item.item_id for item in items if item.max_tokens <= median),
            "long": frozenset(item.item_id for item in items if item.max_tokens >= long_from),
        },
    )
