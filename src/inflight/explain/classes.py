"""What a cell of a picture can be: its meaning, its colour and its character.

The colours are those of Okabe and Ito, "Color Universal Design" (2008), which people with any common form of colour
blindness can tell apart: cool ones where something useful was done, warm ones where not.
"""

from __future__ import annotations

from typing import NamedTuple


class CellClass(NamedTuple):
    """One class of cells."""

    meaning: str
    colour: str  # on a light ground
    colour_dark: str  # on a dark one
    character: str


CLASSES: dict[str, CellClass] = {
    "prefill": CellClass("prompt tokens", "#0072b2", "#3d9bd6", "█"),
    "decode": CellClass("one new token", "#009e73", "#21b58b", "▄"),
    "recompute": CellClass("computed again", "#cc79a7", "#cc79a7", "r"),
    "padding": CellClass("pad tokens", "#f0e442", "#f0e442", "▒"),
    "straggler": CellClass("ended, still computed", "#d55e00", "#e8772a", "░"),
    "empty": CellClass("empty seat", "#eceef1", "#2b3138", "·"),
    "preempted": CellClass("waits, preempted", "#e69f00", "#e69f00", "x"),
    "swapped": CellClass("waits, swapped out", "#8c5a00", "#b47f2a", "s"),
    "waiting": CellClass("waits", "#b4bac4", "#6b7480", "-"),
}
