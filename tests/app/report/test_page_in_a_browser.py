"""The report page in a real browser: charts, keyboard, contrast, no network, hostile strings."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from privsyn_flower.app.report.html.library import library
from privsyn_flower.app.report.page import page, write_page
from tests.app.report.pages import (
    QUALITY,
    VOTED,
    benchmark,
    hostile_folder,
    run_folder,
    topical,
)

pytestmark = pytest.mark.slow

NAMES = ("chromium", "chromium-browser", "google-chrome")
MISSING = "no Chromium here: make browser installs one, PRIVSYN_BROWSER names another"
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 800}
AA, AA_LARGE = 4.5, 3.0  # WCAG 2.1, 1.4.3 and, for graphics, 1.4.11


@dataclass
class Opened:
    """A page in the browser, and what it did that nobody asked for."""

    page: Any
    told: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def settled(self) -> None:
        """All charts are drawn, and nothing went wrong or out."""
        charts = self.page.locator("figure.chart")
        for number in range(charts.count()):
            # not by a function, which would be evaluated: the page's policy forbids that
            charts.nth(number).locator(".plot svg").wait_for(state="attached")
        assert self.told == [] and self.asked == []


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    found = os.environ.get("PRIVSYN_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
    if not found:
        pytest.skip(MISSING)
    sync = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    with sync.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=found)
        yield running
        running.close()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the pages of a run, of two, of texts without topics, and of hostile ones."""
    assert library(), "the extra `report` belongs to the tests' environment"
    top = tmp_path_factory.mktemp("pages")
    told: dict[str, Any] = {"voted": VOTED, "quality": QUALITY, "benchmark": benchmark()}
    one = run_folder(top / "one", texts=topical(90), **told)
    other = run_folder(top / "two", texts=topical(5), benchmark=benchmark(), epsilon=1.29)
    write_page([one], top / "one.html")
    write_page([one, other], top / "several.html")
    rows = [{"text": f"a {'meadow' if n % 8 == 0 else 'mountain'} of words"} for n in range(40)]
    write_page([run_folder(top / "plain", texts=rows)], top / "plain.html")
    write_page([hostile_folder(top / "hostile")], top / "hostile.html")
    long = [f"pretext-of-the-clinics-with-a-long-name-epsilon-7.58-seed-{n}" for n in range(5)]
    write_page([run_folder(top / name, benchmark=benchmark()) for name in long], top / "long.html")
    return top


@pytest.fixture
def opened(browser: Any, runs: Path) -> Iterator[Any]:
    """opened(name, viewport, **context): a page, ready."""
    contexts = []

    def open_(name: str, viewport: dict[str, int] = DESK, **how: Any) -> Opened:
        context = browser.new_context(viewport=viewport, **how)
        contexts.append(context)
        found = Opened(context.new_page())
        address = (runs / name).as_uri()

        def route(route: Any) -> None:
            if route.request.url.partition("#")[0] == address:
                route.continue_()
            else:
                found.asked.append(route.request.url)
                route.abort()

        found.page.route("**/*", route)
        found.page.on("console", lambda one: found.told.append(f"{one.type}: {one.text}"))
        found.page.on("pageerror", lambda error: found.told.append(str(error)))
        found.page.on("dialog", lambda one: found.told.append(f"dialog {one.message}"))
        found.page.goto(address)
        return found

    yield open_
    for context in contexts:
        context.close()


@pytest.mark.parametrize(
    ("name", "viewport"),
    [("one.html", PHONE), ("one.html", DESK), ("several.html", PHONE), ("hostile.html", PHONE)],
)
def test_charts_are_drawn_and_nothing_is_asked_for(
    opened: Any, name: str, viewport: dict[str, int]
) -> None:
    found = opened(name, viewport)
    found.settled()
    own = found.page
    assert own.locator("figure.chart").count() >= 1
    assert own.locator("figure.chart details[open]").count() == 0
    # Nothing is wider than the screen: what is, scrolls in its own box.
    assert own.evaluate("document.documentElement.scrollWidth") <= viewport["width"]


@pytest.mark.parametrize("viewport", [PHONE, DESK])
def test_long_names_are_told_apart_and_no_table_is_cut(
    opened: Any, viewport: dict[str, int]
) -> None:
    found = opened("long.html", viewport)
    found.settled()
    own = found.page
    drawn = [" ".join(one.split()) for one in own.locator(".plot svg").all_text_contents()]
    assert all(f"seed-{n}" in drawn[0] for n in range(5)) and "\u2026" not in drawn[0]
    cut = "[...document.querySelectorAll('.scroll')].filter(x => x.scrollWidth > x.clientWidth)"
    assert own.evaluate(f"{cut}.map(x => x.ariaLabel)") == []
    names = "[...document.querySelectorAll('#trust-0 tbody th')].filter(x => x.clientHeight)"
    assert max(own.evaluate(f"{names}.map(x => x.clientHeight)")) < 80, "two lines, three on phones"
    if viewport is DESK:
        assert own.evaluate("document.querySelector('.page').clientWidth") > 0.95 * DESK["width"]


def test_hostile_strings_are_text(opened: Any) -> None:
    found = opened("hostile.html")
    found.settled()
    own = found.page
    assert own.evaluate("window.taken") is None
    assert own.title().endswith("privsyn-flower")
    assert own.locator("iframe, img, object, base, link").count() == 0
    drawn = "".join(own.locator(".plot svg").all_text_contents())
    assert "<img src=x" in drawn and not re.search("[\u202a-\u202e\u2066-\u2069]", drawn)
    own.locator("#search").fill("</script>")
    assert own.locator("#texts li:not([hidden])").count() >= 1
    # Tooltips of charts show names of others, too.
    own.locator("figure.chart .plot svg path[aria-roledescription='bar']").first.hover()
    own.wait_for_selector("#vg-tooltip-element.visible")
    assert own.evaluate("window.taken") is None and found.told == []


def test_texts_are_searched_and_chosen_by_keyboard(opened: Any) -> None:
    own = opened("one.html").page
    own.keyboard.press("Tab")
    assert own.evaluate("document.activeElement.className") == "skip"
    seen: list[str] = []
    for _ in range(200):
        own.keyboard.press("Tab")
        seen.append(own.evaluate("document.activeElement.id || document.activeElement.tagName"))
        shape = "getComputedStyle(document.activeElement).outlineStyle"
        assert seen[-1] == "BODY" or own.evaluate(shape) != "none"
        if seen[-1] == "search":
            break
    assert "A" in seen and seen[-1] == "search"
    own.keyboard.type("MATRIX")
    shown = own.locator("#texts li:not([hidden])")
    assert shown.count() == 20 and own.locator("#found").inner_text().startswith("30 of 90 texts")
    assert all("matrix" in text for text in shown.all_inner_texts())
    own.keyboard.press("Control+A")
    own.keyboard.press("Delete")
    own.keyboard.press("Tab")
    own.keyboard.type("lemma")  # the select takes the option that begins so
    assert own.locator("#found").inner_text().startswith("30 of 90 texts")
    own.locator("#more").focus()
    own.keyboard.press("Enter")
    assert shown.count() == 30 and not own.locator("#more").is_visible()
    folded = own.locator("figure.chart summary").first
    folded.focus()
    own.keyboard.press("Enter")
    assert own.locator("figure.chart details[open] table").first.is_visible()


def test_texts_without_topics_are_chosen_by_their_words(opened: Any) -> None:
    own = opened("plain.html", PHONE).page
    assert own.locator("#group").count() == 0
    own.locator(".words button", has_text="meadow").press("Enter")
    assert own.locator("#search").input_value() == "meadow"
    assert own.locator("#found").inner_text() == "5 of 40 texts"


def test_without_javascript_every_table_and_text_is_there(opened: Any) -> None:
    own = opened("one.html", PHONE, java_script_enabled=False).page
    charts = own.locator("figure.chart")
    for place in range(charts.count()):
        assert charts.nth(place).locator("table").first.is_visible()
    assert not own.locator("#search").is_visible()
    assert own.locator("#texts li").count() == 90
    assert own.locator("#texts li").last.is_visible()


def test_a_page_on_paper_has_every_section_and_no_controls(opened: Any) -> None:
    found = opened("one.html", color_scheme="dark")
    found.settled()
    own = found.page
    own.emulate_media(media="print", color_scheme="dark")
    own.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert own.locator("details:not([open])").count() == 0
    assert own.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not own.locator("#search").is_visible() and own.locator("#settings").is_visible()
    assert own.pdf()[:5] == b"%PDF-"


# Relative luminance and contrast of every text against what is painted behind it.
CONTRAST = """() => {
  const parse = (text) => (text.match(/[0-9.]+/g) || []).map(Number);
  const channel = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const found = parse(getComputedStyle(node).backgroundColor);
      if (found.length === 3 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const ratio = (a, b) => {
    const [x, y] = [light(a), light(b)].sort((p, q) => q - p);
    return (x + 0.05) / (y + 0.05);
  };
  const rows = [];
  for (const node of document.querySelectorAll('body *')) {
    const own = [...node.childNodes].some((c) => c.nodeType === 3 && c.textContent.trim());
    const svg = node instanceof SVGElement;
    if (!own || ['SCRIPT', 'STYLE'].includes(node.tagName)) continue;
    const style = getComputedStyle(node);
    const back = behind(svg ? node.closest('figure') : node);
    rows.push([ratio(parse(svg ? style.fill : style.color), back),
      `${node.tagName} ${node.textContent.slice(0, 40)}`, 'text']);
  }
  for (const node of document.querySelectorAll('.plot .mark-rect path, .plot .mark-symbol path')) {
    const fill = getComputedStyle(node).fill;
    if (fill === 'none' || fill.includes('rgba')) continue;
    rows.push([ratio(parse(fill), behind(node.closest('figure'))), fill, 'mark']);
  }
  return rows;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_marks_have_enough_contrast(opened: Any, scheme: str) -> None:
    found = opened("one.html", color_scheme=scheme)
    found.settled()
    rows = found.page.evaluate(CONTRAST)
    assert {kind for *_, kind in rows} == {"text", "mark"} and len(rows) > 300
    assert any(name.startswith("text ") for _, name, _ in rows)  # of a chart
    low = [row for row in rows if row[0] < (AA if row[2] == "text" else AA_LARGE)]
    assert low == []


def test_a_page_that_follows_a_run_takes_over_what_is_new(browser: Any, tmp_path: Path) -> None:
    """As `privsyn watch` serves it: only its own address is asked, and what is open stays open."""
    folder = run_folder(tmp_path / "run", texts=topical(3))
    summary = (folder / "summary.json").read_bytes()
    (folder / "summary.json").unlink()
    first = page([folder], live=True).replace('data-live="4"', 'data-live="0.2"')
    (folder / "summary.json").write_bytes(summary)
    last = page([folder], live=True)
    context = browser.new_context(viewport=DESK)
    own, told = context.new_page(), list[str]()
    answers = iter([first, first, last])

    def answer(route: Any) -> None:
        assert route.request.url == "http://run.test/token/"
        route.fulfill(body=next(answers, last), content_type="text/html; charset=utf-8")

    own.route("**/*", answer)
    own.on("console", lambda one: told.append(one.text))
    own.goto("http://run.test/token/")
    own.locator("#settings details summary").click()
    own.locator("header", has_text="of 4").wait_for()
    assert own.locator("#settings details[open]").count() == 1
    own.locator("#went figure.chart .plot svg").wait_for()
    assert own.locator("#found").inner_text() == "3 of 3 texts" and told == []
    context.close()
