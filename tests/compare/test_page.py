"""The page in a browser: nothing is asked of a network, nothing is wrong in the console, no words lie on others."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from .conftest import Compared

playwright = pytest.importorskip("playwright.sync_api")

OVERLAPS = """() => {
  const found = [];
  for (const svg of document.querySelectorAll("figure svg")) {
    const boxes = [...svg.querySelectorAll("text")].filter(one => one.textContent.trim())
      .map(one => [one.textContent, one.getBoundingClientRect()]);
    const frame = svg.getBoundingClientRect();
    boxes.forEach(([text, box], index) => {
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 1) found.push(text);
      for (const [other, its] of boxes.slice(index + 1))
        if (Math.min(box.right, its.right) - Math.max(box.left, its.left) > 1
            && Math.min(box.bottom, its.bottom) - Math.max(box.top, its.top) > 3) found.push(text + " / " + other);
    });
  }
  return found;
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    executable = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if executable is None:
        pytest.skip("no Chromium")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1180, 420])
def test_it_works_offline(compared: Compared, browser: Any, scheme: str, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    wrong: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    url = (compared.folder / "index.html").as_uri()
    page.goto(url)
    assert wrong == []
    assert asked == [url]
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert page.locator("figure svg").count() == 2 + 7 + 2  # charts, seats of each variant, memory
    page.close()


def test_no_words_lie_on_others(compared: Compared, browser: Any) -> None:
    page = browser.new_page(viewport={"width": 1180, "height": 900})
    page.goto((compared.folder / "index.html").as_uri())
    assert page.evaluate(OVERLAPS) == []
    page.close()


def test_links_lead_to_files(compared: Compared, browser: Any) -> None:
    page = browser.new_page()
    page.goto((compared.folder / "index.html").as_uri())
    links = page.eval_on_selector_all("a", "all => all.map(one => one.getAttribute('href'))")
    assert len(links) == 7 + 2
    assert all((compared.folder / link).is_file() for link in links)
    page.close()
