"""How long prompts and outputs are where no trace says so: distributions, and their short form for a flag.

Lengths are in tokens, from 1, below 2^31. Each class raises ``ValueError`` for parameters out of range.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Protocol

P99 = 2.3263478740408408  # standard deviations above the median where 1 % of a normal distribution is left


class Lengths(Protocol):
    """A distribution of lengths."""

    def draw(self, source: random.Random) -> int:
        """Draw one length."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same."""

    num_tokens: int

    def __post_init__(self) -> None:
        _check_range(self.num_tokens, self.num_tokens)

    def draw(self, source: random.Random) -> int:
        """Draw one length."""
        return self.num_tokens


@dataclass(frozen=True, slots=True)
class Uniform:
    """All of ``lowest`` to ``highest`` alike."""

    lowest: int
    highest: int

    def __post_init__(self) -> None:
        _check_range(self.lowest, self.highest)

    def draw(self, source: random.Random) -> int:
        """Draw one length."""
        return source.randint(self.lowest, self.highest)


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Many short, few very long, as real traffic is; what falls outside ``lowest`` to ``highest`` moves to the end."""

    median: float
    p99: float
    lowest: int
    highest: int

    def __post_init__(self) -> None:
        _check_range(self.lowest, self.highest)
        if not self.lowest <= self.median <= self.highest or not self.median <= self.p99 < math.inf:
            raise ValueError(f"lowest <= median <= highest and median <= p99 are needed, got {self}")

    def draw(self, source: random.Random) -> int:
        """Draw one length."""
        sigma = math.log(self.p99 / self.median) / P99
        log_length = min(source.normalvariate(math.log(self.median), sigma), math.log(self.highest))
        return min(max(round(math.exp(log_length)), self.lowest), self.highest)


@dataclass(frozen=True, slots=True)
class Mix:
    """Several kinds of requests: (weight, distribution) each."""

    parts: tuple[tuple[float, Lengths], ...]

    def __post_init__(self) -> None:
        if not self.parts or not all(0 < weight < math.inf for weight, _ in self.parts):
            raise ValueError(f"a mix has parts, with weights above 0 and finite, got {self}")

    def draw(self, source: random.Random) -> int:
        """Draw one length."""
        weights, lengths = zip(*self.parts, strict=True)
        (chosen,) = source.choices(lengths, weights)
        return int(chosen.draw(source))


def draw_lengths(lengths: Lengths, num_requests: int, seed: int = 0) -> list[int]:
    """Draw lengths, the same ones for the same seed."""
    source = random.Random(seed)
    return [lengths.draw(source) for _ in range(num_requests)]


FORMS = "N, uniform:LOWEST,HIGHEST, lognormal:MEDIAN,P99,LOWEST,HIGHEST, or a mix such as 0.9x64+0.1xuniform:500,900"


def parse_lengths(text: str) -> Lengths:
    """Read a distribution in one of the ``FORMS``. Raises ``ValueError`` for another."""
    parts = text.split("+")
    try:
        if len(parts) == 1:
            return _parse_one(text)
        weighted = (part.split("x", 1) for part in parts)
        return Mix(tuple((float(weight), _parse_one(lengths)) for weight, lengths in weighted))
    except ValueError as error:
        raise ValueError(f"lengths are {FORMS}; got {text!r}: {error}") from error


def _parse_one(text: str) -> Lengths:
    kind, colon, arguments = text.partition(":")
    if not colon:
        return Fixed(int(text))
    values = arguments.split(",")
    if kind == "uniform" and len(values) == 2:
        return Uniform(int(values[0]), int(values[1]))
    if kind == "lognormal" and len(values) == 4:
        return LogNormal(float(values[0]), float(values[1]), int(values[2]), int(values[3]))
    raise ValueError(f"{text!r} is none of these")


def _check_range(lowest: int, highest: int) -> None:
    if not 1 <= lowest <= highest < 2**31:
        raise ValueError(f"lengths are from 1, below 2^31, and the lowest comes first, got {lowest} to {highest}")
