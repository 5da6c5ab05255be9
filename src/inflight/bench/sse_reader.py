"""Server-sent events, read as they come: https://html.spec.whatwg.org/multipage/server-sent-events.html."""

from __future__ import annotations

import re

_LINE_END = re.compile(rb"\r\n|\r|\n")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class SSEReader:
    """Takes a stream in pieces, cut anywhere, and gives the data of each event as soon as its empty line is there.

    Comments and fields other than ``data`` are skipped; an event without its empty line never was one.
    """

    def __init__(self) -> None:
        self._rest: list[bytes] = []  # the pieces of a line that has not ended
        self._data: list[bytes] = []  # of an event that has not ended
        self._after_cr = False  # a line feed that comes now belongs to the line that has ended
        self._at_start = True

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of the events that end in this piece."""
        if not piece:
            return []
        if self._after_cr and piece.startswith(b"\n"):
            piece = piece[1:]
        self._after_cr = piece.endswith(b"\r")
        first, *others = _LINE_END.split(piece)
        self._rest.append(first)
        if not others:
            return []
        lines = [b"".join(self._rest), *others[:-1]]
        self._rest = [others[-1]]
        return [data for line in lines if (data := self._line(line)) is not None]

    def _line(self, line: bytes) -> bytes | None:
        """Take in a line; the data of the event that it ends, if it does."""
        if self._at_start:
            line = line.removeprefix(_BYTE_ORDER_MARK)
            self._at_start = False
        if not line:
            data, self._data = self._data, []
            return b"\n".join(data) if data else None
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
        return None
