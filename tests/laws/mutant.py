"""A small edit of the source that makes a scheduler wrong."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    before: str  # occurs exactly once in the file
    after: str
    family: str = "continuous"  # whose worlds are played
    caught_by: str = ""  # the law that must catch it; else any one
