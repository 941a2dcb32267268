"""Pages in a real browser, for every test that looks at one; a plugin of tests/conftest.py."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

__all__ = ["OpenPage"]

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)

OpenPage = Callable[..., "Page"]
"""Opens a file, at an anchor ("#…") if one is given, with options of Playwright's `new_page`."""


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
    """Opens a file; whatever its page complains about, asks the reader or asks of the network fails the test."""
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
