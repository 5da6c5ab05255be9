"""The SVG is well-formed, holds every cell, and stays small."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from explain.logs import LogWriter, static_log
from explain.test_timeline import timeline_of
from inflight.explain import svg
from inflight.explain.classes import CLASSES

SVG = "{http://www.w3.org/2000/svg}"


def colours(root: ET.Element) -> list[str]:
    names = {one.colour: name for name, one in CLASSES.items()}
    return [names[rect.attrib["fill"]] for cell in root.iter(f"{SVG}g") for rect in cell.iter(f"{SVG}rect")]


def test_a_cell_for_each_seat_and_step(tmp_path: Path) -> None:
    timeline = timeline_of(static_log(tmp_path / "log", {"ann": (4, 3), "bob": (2, 6)}, 2))
    root = ET.fromstring(svg.draw(timeline))
    assert colours(root) == ["prefill", *["decode"] * 2, *["straggler"] * 3, "padding", "prefill", *["decode"] * 5]
    titles = [title.text for title in root.iter(f"{SVG}title")]
    assert titles[:2] == ["step 0: 4 prefill", "step 1: 1 decode"]
    assert titles[6] == "step 0: 2 padding, 2 prefill"


def test_cells_are_divided_like_their_tokens_and_lie_side_by_side(tmp_path: Path) -> None:
    timeline = timeline_of(static_log(tmp_path / "log", {"ann": (40, 2), "bob": (10, 2)}, 2))
    cells = list(ET.fromstring(svg.draw(timeline)).iter(f"{SVG}g"))
    pads, prompt = ((float(one.attrib["x"]), float(one.attrib["width"])) for one in cells[2].iter(f"{SVG}rect"))
    assert pads[1] == pytest.approx(3 * prompt[1], abs=0.02)
    assert sum(pads) == pytest.approx(prompt[0], abs=0.02)


@pytest.mark.parametrize("columns", ["steps", "time"])
@pytest.mark.parametrize("rows", ["seats", "requests"])
def test_many_steps_are_drawn_together(tmp_path: Path, rows: str, columns: str) -> None:
    requests = {f"r{index}": (5 + index % 7, 40 + index * 37 % 300) for index in range(60)}
    timeline = timeline_of(static_log(tmp_path / "log", requests, 4))
    assert len(timeline.steps) > 3000
    drawn = svg.draw(timeline, rows, columns)
    ET.fromstring(drawn)
    assert len(drawn) < 500_000


def test_a_run_can_be_drawn_on_the_axis_of_a_longer_one(tmp_path: Path) -> None:
    timeline = timeline_of(static_log(tmp_path / "log", {"ann": (4, 3)}, 1))  # three steps, of 0.01 s each
    left, right = _ends(svg.draw(timeline, "requests", "time"))
    middle = (left + right) / 2
    assert _ends(svg.draw(timeline, "requests", "time", (0.0, 0.06))) == pytest.approx((left, middle), abs=1)
    assert _ends(svg.draw(timeline, "requests", "time", (0.01, 0.03))) == pytest.approx((left, right), abs=1)


def _ends(drawn: str) -> tuple[float, float]:
    """Where the first cell starts and the last one ends, in pixels."""
    cells = [cell for group in ET.fromstring(drawn).iter(f"{SVG}g") for cell in group.iter(f"{SVG}rect")]
    first, last = cells[0].attrib, cells[-1].attrib
    return float(first["x"]), float(last["x"]) + float(last["width"])


def test_names_are_escaped(tmp_path: Path) -> None:
    timeline = timeline_of(static_log(tmp_path / "log", {"<script>&\x00": (2, 2)}, 1))
    root = ET.fromstring(svg.draw(timeline, "requests"))
    assert any(text.text == "<script>&? 2+2" for text in root.iter(f"{SVG}text"))


def test_nothing_to_draw(tmp_path: Path) -> None:
    timeline = timeline_of(LogWriter(tmp_path / "log", "static", 2).close())
    texts = [text.text for text in ET.fromstring(svg.draw(timeline)).iter(f"{SVG}text")]
    assert texts == ["static batching, 2 seats, 0 sequences, no step that ended", "2 of 2 seats were never taken"]


@pytest.mark.parametrize(
    ("at_least", "whole", "expected"),
    [(0.3, True, 1), (1.0, True, 1), (1.1, True, 2), (3.0, True, 5), (70.0, True, 100), (0.03, False, 0.05)],
)
def test_ticks_are_round_numbers(at_least: float, whole: bool, expected: float) -> None:
    assert svg.tick_distance(at_least, whole) == expected
