"""Finding a stop string in text that arrives in pieces."""

from __future__ import annotations


class StopMatcher:
    """Follows one stop string through a text, in amortised constant time per character.

    ``num_matched`` is the length of the longest end of the text so far that the stop string begins with, without
    being all of it: so much may still become the stop string. (Knuth, Morris and Pratt 1977; the table of fallbacks
    grows only as far as a match has come, so that a long stop string costs nothing before it is nearly met.)
    """

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.num_matched = 0
        self._fallback = [0]  # [k]: what stays matched where stop[: k + 1] was and the next character differs

    def feed(self, text: str, start: int = 0) -> int | None:
        """Read ``text[start:]``: the position after the first completion, or None. Read on from that position."""
        stop, fallback = self.stop, self._fallback
        matched, position = self.num_matched, start
        while position < len(text):
            if matched == 0:
                position = text.find(stop[0], position)
                if position < 0:
                    break
            elif text[position] != stop[matched]:
                matched = fallback[matched - 1]
                continue
            matched += 1
            position += 1
            if matched > len(fallback):
                fallback.append(self._next_fallback())
            if matched == len(stop):
                self.num_matched = fallback[matched - 1]
                return position
        self.num_matched = matched
        return None

    def _next_fallback(self) -> int:
        character, length = self.stop[len(self._fallback)], self._fallback[-1]
        while length and self.stop[length] != character:
            length = self._fallback[length - 1]
        return length + (self.stop[length] == character)
