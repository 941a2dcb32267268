"""Fixtures that open pages in a real browser; a plugin of tests/conftest.py."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

__all__ = ["OpenPage", "page_faults"]

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)

OpenPage = Callable[..., "Page"]
"""Opens a file, at an anchor ("#…") if one is given, with options of Playwright's `new_page`."""

_CHECKS = Path(__file__).with_name("page_checks.js")
_CHOOSE_SCHEME = """(scheme) => {
  const ours = document.documentElement.dataset, theme = document.body.dataset;  // `theme`: of the documentation
  if (theme.mdColorScheme) theme.mdColorScheme = scheme === "dark" ? "slate" : "default"; else ours.theme = scheme;
}"""


def page_faults(page: Page) -> list[str]:
    """What page_checks.js complains about, on a telephone and on a desk, there in light and in dark."""
    page.emulate_media(reduced_motion="reduce")
    page.add_style_tag(content="* { transition: none !important }")
    found = []
    for width, scheme in ((390, "light"), (1280, "light"), (1280, "dark")):
        page.set_viewport_size({"width": width, "height": 844})
        page.evaluate(_CHOOSE_SCHEME, scheme)
        found += [f"{width} px, {scheme}: {fault}" for fault in page.evaluate(_CHECKS.read_text())]
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The Chromium of this machine."""
    from playwright.sync_api import sync_playwright  # here, so that other tests need not wait for it

    program = next(filter(None, map(shutil.which, _PROGRAMS)), None)
    if program is None:
        pytest.skip("no Chromium on PATH; scripts/install_test_tools.sh installs it")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=list(_FLAGS))
        yield opened
        opened.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Open a file; any console message, error, dialog or network request of its page fails the test."""
    pages: list[tuple[Page, list[str]]] = []

    def opened(path: Path, anchor: str = "", **options: Any) -> Page:
        complaints: list[str] = []
        page = browser.new_page(**options)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.on("request", lambda asked: complaints.append(asked.url) if asked.url != path.as_uri() else None)
        page.goto(path.as_uri() + anchor)
        pages.append((page, complaints))
        return page

    yield opened
    for page, complaints in pages:
        assert complaints == []
        page.close()
