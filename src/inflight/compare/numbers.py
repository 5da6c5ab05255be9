"""Numbers as people read them: about three figures, and a unit."""

from __future__ import annotations

NOTHING = "–"


def seconds(value: float | None) -> str:
    """``1.23 s``, ``45.6 ms`` or ``7.89 µs``."""
    if value is None:
        return NOTHING
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if abs(value) * scale >= 1 or value == 0:
            return f"{number(value * scale)} {unit}"
    return f"{number(value * 1e6)} µs"


def percent(share: float | None) -> str:
    """``12.3 %``; what is above 0 is never shown as 0."""
    if share is None:
        return NOTHING
    return "< 0.1 %" if 0 < share < 0.0005 else f"{100 * share:.1f} %"


def number(value: float | None) -> str:
    """Three figures, all of those before the point; a whole number as it is."""
    if value is None:
        return NOTHING
    if isinstance(value, int):
        return f"{value:,}"
    for digits, above in ((0, 99.95), (1, 9.995), (2, 0.9995)):
        if abs(value) >= above:
            return f"{value:,.{digits}f}"
    return f"{value:.3g}"


def times(value: float | None, base: float | None) -> str | None:
    """How often ``base`` is in ``value``, as ``16 times``; None where that is not defined, or is about 1."""
    if value is None or not base or 0.95 <= value / base <= 1.05:
        return None
    return f"{number(value / base)} times"
