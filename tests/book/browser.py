"""A headless Chromium that opens a rendered book as a reader does, with the network cut off and watched."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NARROW, WIDE = 375, 1400


def find_chromium() -> str | None:
    """The path of a Chromium or Chrome on this machine."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((path for name in names if (path := shutil.which(name))), None)


@dataclass
class View:
    """A page on one screen in one theme.

    `overflow` is how many pixels wider than the screen the page is; `figures` is the drawn width and height
    of each Plotly figure that was drawn, of the `plots` on the page; `contrasts` those of figure text,
    captions, claims and maths with what is behind them; `maths` how many formulas take up room.
    """

    width: int
    theme: str
    overflow: int
    figures: list[tuple[float, float]]
    contrasts: list[float]
    plots: int
    maths: int


@dataclass
class Seen:
    """What opening one page showed: what it asked of the network, what it complained of, and its views."""

    outside: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    views: list[View] = field(default_factory=list)


# The wait is for Plotly: it draws in a promise after the page has loaded.
_DRAWN = "() => [...document.querySelectorAll('.eagle3lab-plot')].every(p => p.querySelector('svg.main-svg'))"

# As the theme's own switch does it; a redraw of figures after it, or after a change of width, is not announced.
_SWITCH = "theme => { const d = document.documentElement.dataset; d.theme = theme; d.mode = theme; }"
_REDRAWN_MS = 300

_TICK_COLOUR = "() => getComputedStyle(document.querySelector('.eagle3lab-plot .xtick text')).fill"

_MEASURE = """() => {
  const size = (element) => { const box = element.getBoundingClientRect(); return [box.width, box.height]; };
  const rgb = (text) => (text.match(/[\\d.]+/g) || []).slice(0, 3).map(Number);
  const luminance = (colour) => {
    const [r, g, b] = colour.map((c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    const painted = getComputedStyle(element).backgroundColor;
    const clear = painted === 'transparent' || /, 0\\)$/.test(painted);
    return clear && element.parentElement ? ground(element.parentElement) : luminance(rgb(painted));
  };
  const contrast = (element) => {
    const style = getComputedStyle(element);
    const text = luminance(rgb(element instanceof SVGElement ? style.fill : style.color));
    const page = ground(element);
    return (Math.max(text, page) + 0.05) / (Math.min(text, page) + 0.05);
  };
  return {
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    figures: [...document.querySelectorAll('.eagle3lab-plot svg.main-svg:first-of-type')].map(size),
    plots: document.querySelectorAll('.eagle3lab-plot').length,
    contrasts: [...document.querySelectorAll(
      '.eagle3lab-plot .xtick text, .eagle3lab-plot .legendtext, .eagle3lab-claim, figcaption, math'
    )].map(contrast),
    maths: [...document.querySelectorAll('math')].filter((m) => size(m)[0] > 0).length,
  };
}"""


class Browser:
    """One running Chromium; pages open from the file system, and every other request is refused and noted."""

    def __init__(self, chromium: Any) -> None:
        self._chromium = chromium

    def visit(self, page: Path, *, widths: tuple[int, ...] = (WIDE,), screenshot: Path | None = None) -> Seen:
        """Open `page` once and look at it in both themes, on a screen of each of `widths` pixels."""
        seen = Seen()
        context = self._chromium.new_context(
            viewport={"width": widths[0], "height": 900}, color_scheme="light"
        )
        try:
            tab = context.new_page()
            tab.add_init_script(
                "localStorage.setItem('mode', 'light'); localStorage.setItem('theme', 'light')"
            )
            tab.on("pageerror", lambda error: seen.errors.append(str(error)))
            tab.on("console", lambda line: seen.errors.append(line.text) if line.type == "error" else None)
            tab.route("**/*", lambda route: self._admit(route, seen))
            tab.goto(page.as_uri(), wait_until="load")
            for width in widths:
                tab.set_viewport_size({"width": width, "height": 900})
                for theme in ("light", "dark"):
                    tab.evaluate(_SWITCH, theme)
                    tab.wait_for_function(_DRAWN, timeout=20_000)
                    if tab.locator(".eagle3lab-plot").count():
                        tab.wait_for_timeout(_REDRAWN_MS)
                    seen.views.append(View(width, theme, **tab.evaluate(_MEASURE)))
            if screenshot is not None:
                tab.screenshot(path=str(screenshot), full_page=True)
        finally:
            context.close()
        return seen

    def tick_colours(self, page: Path) -> dict[str, str]:
        """The colour of a figure's axis labels under each theme, switched on the open page as a reader does."""
        tab = self._chromium.new_page()
        try:
            tab.goto(page.as_uri(), wait_until="load")
            colours = {}
            for theme in ("light", "dark"):
                tab.evaluate(_SWITCH, theme)
                tab.wait_for_function(_DRAWN, timeout=20_000)
                tab.wait_for_timeout(_REDRAWN_MS)
                colours[theme] = tab.evaluate(_TICK_COLOUR)
        finally:
            tab.close()
        return colours

    def chosen(self, page: Path, fields: dict[str, str]) -> list[str]:
        """What the form of a page ranks when its fields (CSS selector to value) are filled in, as shown."""
        tab = self._chromium.new_page()
        try:
            tab.goto(page.as_uri(), wait_until="load")
            form = tab.locator("form.eagle3lab-chooser")
            for selector, value in fields.items():
                form.locator(selector).fill(value)
            found: list[str] = form.locator("[data-result] li").all_inner_texts()
        finally:
            tab.close()
        return found

    def said_of(self, page: Path, lines: Iterable[str]) -> dict[str, list[str]]:
        """What the field that reads a log line says of each of `lines`."""
        tab = self._chromium.new_page()
        try:
            tab.goto(page.as_uri(), wait_until="load")
            said: dict[str, list[str]] = {}
            for line in lines:
                tab.locator(".eagle3lab-rate input").fill(line)
                said[line] = tab.locator(".eagle3lab-rate output p").all_inner_texts()
        finally:
            tab.close()
        return said

    @staticmethod
    def _admit(route: Any, seen: Seen) -> None:
        if route.request.url.startswith(("file:", "data:", "blob:")):
            route.continue_()
        else:
            seen.outside.append(route.request.url)
            route.abort()


@contextmanager
def browser(executable: str) -> Iterator[Browser]:
    """A Chromium that may not reach the network by itself either."""
    from playwright.sync_api import sync_playwright

    quiet = [
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        "--no-first-run",
        "--host-resolver-rules=MAP * ~NOTFOUND",
    ]
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable, args=quiet)
        try:
            yield Browser(chromium)
        finally:
            chromium.close()
