"""Random numbers without a state: each is a function of (seed, choice, position), so that nothing can shift a draw."""

from __future__ import annotations

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio, the increment of SplitMix64


def _mix(x: int) -> int:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): a bijection of 64 bits that avalanches."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def uniform(seed: int, choice: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits, for the token of ``choice`` at ``position`` of its sequence."""
    state = _mix((seed + _GOLDEN) & _MASK)
    state = _mix((state + choice * _GOLDEN + _GOLDEN) & _MASK)
    state = _mix((state + position * _GOLDEN + _GOLDEN) & _MASK)
    return (state >> 11) / 2**53
