"""Pictures for the terminal, whole; and their limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from explain.logs import LogWriter, static_log
from explain.test_timeline import A, B, timeline_of
from inflight.explain import text

THREE = {"ann": (4, 3), "bob": (2, 6), "eve": (6, 1)}

SEATS = """\
static batching, 3 seats, 3 sequences, 6 steps, 0.060 s

seat 0 │█▄▄░░░│
seat 1 │▒▄▄▄▄▄│
seat 2 │█░░░░░│
  step  0

█ prefill (prompt tokens)   ▄ decode (one new token)   ▒ padding (pad tokens)
░ straggler (ended, still computed)"""

REQUESTS_IN_TIME = """\
static batching, 2 seats, 3 sequences, 7 steps, 0.070 s

ann 4+3 │███████▄▄▄▄▄▄▄▄▄▄▄▄▄▄░░░░░░░░░░░░░░░░░░░░░░       │
bob 2+6 │▒▒▒▒▒▒▒▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄       │
eve 6+1 │-------------------------------------------███████│
      s  0.000           0.022           0.045

█ prefill (prompt tokens)   ▄ decode (one new token)
▒ padding (pad tokens)   ░ straggler (ended, still computed)
- waiting (waits)
before each row: the request, its prompt + new tokens"""

LEDGER = """\
computed row-slots                24
  prefill                         12    50.0 %
  decode                           7    29.2 %
  padding                          2     8.3 %
  straggler                        3    12.5 %
  recompute                        0     0.0 %
seats x steps                     14
  useful                          10    71.4 %
  straggler                        3    21.4 %
  empty                            1     7.1 %
waited for a seat            0.060 s   mean 0.020 s, longest 0.060 s"""


def test_seats_over_steps(tmp_path: Path) -> None:
    assert text.draw(timeline_of(static_log(tmp_path / "log", THREE, 3))) == SEATS


def test_requests_over_time_and_the_ledger(tmp_path: Path) -> None:
    timeline = timeline_of(static_log(tmp_path / "log", THREE, 2))
    assert text.draw(timeline, "requests", "time", width=60) == REQUESTS_IN_TIME
    assert text.ledger_table(timeline) == LEDGER


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("rows", ["seats", "requests"])
@pytest.mark.parametrize("columns", ["steps", "time"])
def test_no_line_is_longer_than_asked_for(tmp_path: Path, width: int, rows: str, columns: str) -> None:
    name = "a request whose name goes on and on"
    timeline = timeline_of(static_log(tmp_path / "log", {name: (40, 700), "b": (3, 50)}, 1))
    drawn = text.draw(timeline, rows, columns, width)
    assert max(map(len, drawn.splitlines())) == width
    assert "a character is" in drawn or columns == "time"


def test_a_width_that_is_too_small(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 40"):
        text.draw(timeline_of(static_log(tmp_path / "log", THREE, 3)), width=39)


def test_names_cannot_drive_the_terminal(tmp_path: Path) -> None:
    timeline = timeline_of(static_log(tmp_path / "log", {"\x1b[2Jboo\n": (2, 2)}, 1))
    assert "?[2Jboo? 2+2 │█▄│" in text.draw(timeline, "requests")


def test_failed_steps_and_untaken_seats_are_told(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "log", "continuous", 5)
    log.add("a", 2)
    log.step([(A, 0, 2)], failure="torn")
    log.step([(A, 0, 2)], ended=(A,))
    drawn = text.draw(timeline_of(log.close()))
    assert "2 steps (1 of them failed), 0.020 s" in drawn
    assert "seat 0 │r█│" in drawn
    assert "4 of 5 seats were never taken" in drawn


def test_a_log_without_steps_has_no_picture(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "log", "continuous", 5)
    log.add("a", 2)
    timeline = timeline_of(log.close())
    for rows in ("seats", "requests"):
        assert "no step that ended" in text.draw(timeline, rows)
    assert "waited" not in text.ledger_table(timeline)


def test_a_clipped_picture_keeps_the_numbers_of_its_steps(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "log", "continuous", 1)
    log.add("a", 2)
    log.add("b", 2)
    log.step([(A, 0, 2)])
    for position in range(2, 9):
        log.step([(A, position, 1)], ended=(A,) if position == 8 else ())
    log.step([(B, 0, 2)], ended=(B,))
    drawn = text.draw(timeline_of(log.close()).clip(7), "requests").splitlines()
    assert drawn[2:5] == ["a 2+8 │▄ │", "b 2+1 │-█│", " step  7"]
