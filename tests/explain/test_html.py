"""The page in a real browser: it needs nothing, says what is under the pointer, and takes 10,000 steps."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from explain.logs import LogWriter, continuous_log, poisson_arrivals, static_log
from explain.test_timeline import A, timeline_of
from inflight.explain import html
from inflight.explain.timeline import SequenceTrack, Span, Step, Timeline
from inflight.metrics.ledger import Slots

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the PATH")

THREE = {"ann": (4, 3), "bob": (2, 6), "<eve>&</script>": (6, 1)}


@pytest.fixture(scope="module")
def browser() -> Iterator:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, tmp_path: Path) -> Iterator[Callable]:
    """Opens a page from its file; whatever it asks for or complains of fails the test."""
    wrong: list[str] = []
    pages = []

    def opened(content: str, **settings):
        file = tmp_path / "page.html"
        file.write_text(content, encoding="utf-8")
        page = browser.new_page(viewport={"width": 1200, "height": 800}, **settings)
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: None if request.url == file.as_uri() else wrong.append(request.url))
        page.goto(file.as_uri())
        page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        pages.append(page)
        return page

    yield opened
    for page in pages:
        page.close()
    assert wrong == []


def hover(page, row: int, share: float) -> str:
    """What is told at ``share`` of the plot's width in a row."""
    left, width, row_height = page.evaluate("[left, width - left - RIGHT, rowHeight]")
    box = page.locator("canvas").bounding_box()
    page.mouse.move(box["x"] + left + share * width, box["y"] + (row + 0.5) * row_height)
    tip = page.locator("#tip")
    return tip.inner_text() if tip.is_visible() else ""


def shown(page) -> list[float]:
    return page.evaluate("[state.x0, state.x1]")


def pixel(page, row: int, share: float) -> list[int]:
    return page.evaluate(
        """([row, share]) => {
            paint();
            const copy = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
            const x = left + share * (width - left - RIGHT), y = (row + 0.5) * rowHeight;
            copy.drawImage(canvas, x * devicePixelRatio, y * devicePixelRatio, 1, 1, 0, 0, 1, 1);
            return [...copy.getImageData(0, 0, 1, 1).data.slice(0, 3)];
        }""",
        [row, share],
    )


UNPAINTED = """row => {
    paint();
    const copy = document.createElement("canvas"), wide = Math.floor(width - RIGHT - left) - 1;
    copy.width = wide;
    const to = copy.getContext("2d", { willReadFrequently: true });
    to.drawImage(canvas, Math.ceil(left), Math.floor((row + 0.5) * rowHeight), wide, 1, 0, 0, wide, 1);
    return to.getImageData(0, 0, wide, 1).data.filter((value, i) => i % 4 === 3 && value < 255).length;
}"""


def test_what_is_under_the_pointer(open_page, tmp_path: Path) -> None:
    page = open_page(html.draw(timeline_of(static_log(tmp_path / "log", THREE, 3))))
    assert hover(page, 0, 0.5 / 6).split("\n") == [
        "seat 0",
        "ann (4 prompt tokens, 3 new)",
        "step 0: 0.0100 s, from 0.0000 s on",
        "padding: pad tokens, 2 tokens",
        "prefill: prompt tokens, 4 tokens",
    ]
    assert hover(page, 0, 4.5 / 6).endswith("straggler: ended, still computed, 1 token")
    assert "<eve>&</script>" in hover(page, 2, 0.5 / 6)
    assert hover(page, 0, -0.01) == ""


def test_rows_and_columns_are_switched(open_page, tmp_path: Path) -> None:
    page = open_page(html.draw(timeline_of(static_log(tmp_path / "log", THREE, 2))))
    assert page.locator("[aria-pressed=true]").all_inner_texts() == ["seats", "steps"]
    page.click("[data-rows=requests]")
    assert "waits" in hover(page, 2, 0.5 / 7)
    page.click("[data-columns=time]")
    assert page.locator("[aria-pressed=true]").all_inner_texts() == ["requests", "time"]
    assert hover(page, 2, 0.1) == "<eve>&</script>  6+1\nwaits 0.060 s for its first step"
    assert shown(page) == pytest.approx([0.0, 0.07])


def test_the_wheel_zooms_where_it_is_and_dragging_moves(open_page, tmp_path: Path) -> None:
    page = open_page(html.draw(timeline_of(static_log(tmp_path / "log", {"a": (4, 200), "b": (3, 100)}, 2))))
    assert shown(page) == [0, 200]
    before = hover(page, 0, 0.2525)
    page.mouse.wheel(0, -400)
    page.wait_for_function("state.x1 - state.x0 < 199")
    low, high = shown(page)
    assert (50.5 - low) / (high - low) == pytest.approx(0.2525, abs=0.01)
    assert hover(page, 0, 0.2525) == before
    page.mouse.down()
    box = page.locator("canvas").bounding_box()
    page.mouse.move(box["x"] + 100, box["y"] + 10)
    page.mouse.up()
    assert shown(page)[0] > low
    page.click("#all")
    assert shown(page) == [0, 200]
    page.click("#in")
    assert shown(page) == [50, 150]
    page.click("#out")
    assert shown(page) == [0, 200]
    for _ in range(20):
        page.click("#in")
    assert shown(page)[1] - shown(page)[0] == 4


def test_the_keyboard_reaches_every_cell_and_says_what_it_is(open_page, tmp_path: Path) -> None:
    page = open_page(html.draw(timeline_of(static_log(tmp_path / "log", THREE, 3))))
    page.focus("canvas")
    said = page.locator("#said")
    page.keyboard.press("ArrowRight")
    assert said.inner_text().startswith("seat 0; ann (4 prompt tokens, 3 new); step 0:")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert "bob" in said.inner_text()
    assert "step 1" in said.inner_text()
    page.keyboard.press("End")
    assert "step 5" in said.inner_text()
    page.keyboard.press("+")
    assert shown(page) == [2, 6]
    page.keyboard.press("Home")
    assert shown(page)[0] == 0
    page.keyboard.press("0")
    assert shown(page) == [0, 6]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_cells_have_the_colours_of_the_legend(open_page, tmp_path: Path, scheme: str) -> None:
    page = open_page(html.draw(timeline_of(static_log(tmp_path / "log", THREE, 3))), color_scheme=scheme)
    of_legend = {
        name: [int(number) for number in re.findall(r"\d+", colour)]
        for name, colour in page.evaluate(
            "[...document.querySelectorAll('#legend li')].map(li => [li.childNodes[1].textContent, "
            "getComputedStyle(li.firstChild).backgroundColor])"
        )
    }
    assert pixel(page, 0, 1.5 / 6) == of_legend["decode"]
    assert pixel(page, 0, 4.5 / 6) == of_legend["straggler"]
    assert pixel(page, 1, 0.2 / 6) == of_legend["padding"]
    assert pixel(page, 2, 0.5 / 6) == of_legend["prefill"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out(open_page, tmp_path: Path, scheme: str) -> None:
    """WCAG 2.2, 1.4.3: 4.5 to 1."""
    page = open_page(html.draw(timeline_of(static_log(tmp_path / "log", THREE, 3))), color_scheme=scheme)

    def luminance(colour: str) -> float:
        channels = [int(number) / 255 for number in re.findall(r"\d+", colour)[:3]]
        linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for selector, ground in (("h1", "body"), ("#about", "body"), ("#legend span", "body"), ("pre", "pre"),
                             ("[aria-pressed=true]", "[aria-pressed=true]"), ("#all", "#all")):  # fmt: skip
        text, behind = (
            luminance(page.eval_on_selector(one, f"node => getComputedStyle(node).{what}"))
            for one, what in ((selector, "color"), (ground, "backgroundColor"))
        )
        assert (max(text, behind) + 0.05) / (min(text, behind) + 0.05) >= 4.5, selector


def test_the_page_says_what_the_ledger_says(open_page, tmp_path: Path) -> None:
    page = open_page(html.draw(timeline_of(static_log(tmp_path / "log", {"a": (4, 3), "b": (4, 9)}, 2))))
    assert "straggler ended, still computed, 25.0 % of computed slots" in page.locator("#legend").inner_text()
    assert "straggler                        6    25.0 %" in page.locator("pre").inner_text()


@pytest.mark.parametrize("num_requests", [0, 1])
def test_almost_nothing(open_page, tmp_path: Path, num_requests: int) -> None:
    log = LogWriter(tmp_path / "log", "continuous", 2)
    if num_requests:
        log.add("a", 1)
        log.step([(A, 0, 1)], ended=(A,))
    page = open_page(html.draw(timeline_of(log.close())))
    page.click("[data-rows=requests]")
    page.click("[data-columns=time]")
    page.click("#in")
    page.focus("canvas")
    page.keyboard.press("ArrowRight")
    assert ("no step that ended" in page.locator("#about").inner_text()) == (not num_requests)


def big_timeline(num_steps: int = 10_000, num_seats: int = 64) -> Timeline:
    """Seats that are taken again and again: 2 steps of prefill, 100 of decode on average, a gap now and then."""
    rng = random.Random(1)
    steps = tuple(Step(i, i * 0.01, i * 0.01 + 0.009, num_seats, 0, False, Slots(decode=64)) for i in range(num_steps))
    sequences: list[SequenceTrack] = []
    seats = []
    for seat in range(num_seats):
        column, spans = 0, []
        while column < num_steps:
            mine = []
            for parts, most in (((("prefill", 256),), 3), ((("decode", 1),), 200)):
                length = min(rng.randint(1, most), num_steps - column)
                mine += [Span(column, length, parts, len(sequences))] if length else []
                column += length
            spans += mine
            sequences.append(
                SequenceTrack((f"s{seat}-{column}", 0), 256, 0, 100, mine[0].column * 0.01, 0.0, tuple(mine))
            )
            if rng.random() < 0.3 and column < num_steps:
                spans.append(Span(column, 1, (("empty", 0),), None))
                column += 1
        seats.append(tuple(spans))
    return Timeline("continuous", steps, tuple(sequences), tuple(seats))


def test_ten_thousand_steps_of_64_seats(open_page) -> None:
    content = html.draw(big_timeline())
    assert len(content) < 1_000_000
    page = open_page(content)
    assert page.evaluate("rowHeight * tracks.length + AXIS <= height")  # all rows at once
    assert page.evaluate(UNPAINTED, 5) == 0  # what is too narrow for a pixel of its own adds up to whole ones
    hover(page, 10, 0.5)
    for _ in range(40):
        page.mouse.wheel(0, -300)
    page.wait_for_function("state.x1 - state.x0 <= 4.001")
    assert "step 5000" in hover(page, 10, 0.5) or "step 4999" in hover(page, 10, 0.5)
    page.click("[data-rows=requests]")  # thousands of rows: they scroll
    page.click("#all")
    page.evaluate("$('frame').scrollTop = 1e9")
    last = page.evaluate("labels[labels.length - 1]")
    row = page.evaluate("tracks.length - 1 - $('frame').scrollTop / rowHeight")
    assert last.split()[0] in hover(page, row, 0.9999)


def test_a_real_run_opens_in_the_asked_view(open_page, tmp_path: Path) -> None:
    path = continuous_log(tmp_path / "log", poisson_arrivals(3, 20, 100, 60), 8, num_blocks=60)
    page = open_page(html.draw(timeline_of(path), "requests", "time"))
    assert page.locator("[aria-pressed=true]").all_inner_texts() == ["requests", "time"]
    assert "3 seats were never taken" not in page.locator("#about").inner_text()
    page.click("[data-rows=seats]")
    assert "3 seats were never taken" in page.locator("#about").inner_text()
