"""The pages of the documentation in a real browser: contrast, names, headings, width, console; and their search.

The pages of `swegym view` and of the reports are checked in the same way beside their other tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser import page_faults
from tests.contracts.documents import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SOURCES = ("mkdocs.yml", "CONTRIBUTING.md", "SECURITY.md", "docs", "examples", "swegym_env", "swe_trainers")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation: as `make check` or `make docs` built it, or built anew if something has changed since."""
    built = ROOT / "build" / "docs"
    last = built / "search" / "search_index.js"
    files = [path for name in SOURCES for path in ((ROOT / name), *(ROOT / name).rglob("*.*"))]
    read = [path for path in files if path.suffix in (".md", ".py", ".yml", ".yaml", ".css", ".js", ".png")]
    if last.exists() and last.stat().st_mtime > max(path.stat().st_mtime for path in read):
        return built
    target = tmp_path_factory.mktemp("documentation")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(target)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return target


def watched(page: Page, site: Path) -> list[str]:
    """A list that the page adds to: messages of its console, errors, and requests beyond the folder of the site."""
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda asked: None if asked.url.startswith(site.as_uri()) else complaints.append(asked.url))
    return complaints


def test_pages_of_the_documentation_are_accessible_and_fit_a_telephone(browser: Browser, site: Path) -> None:
    pages = sorted(path for path in site.rglob("*.html") if path.name != "404.html")  # which a server sends
    assert len(pages) > 25
    context = browser.new_context()
    page = context.new_page()
    complaints = watched(page, site)
    found = {}
    for path in pages:
        page.goto(path.as_uri())
        faults = [*page_faults(page), *complaints]
        if faults:
            found[path.relative_to(site).as_posix()] = faults
        complaints.clear()
    context.close()
    assert found == {}


@pytest.mark.parametrize("width", [390, 1280])
def test_search_finds_pages_from_the_file_system(browser: Browser, site: Path, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 844})
    complaints = watched(page, site)
    page.goto((site / "reference" / "info.html").as_uri())
    if width < 400:
        page.locator("label.md-header__button[for=__search]").click()
    page.locator(".md-search__input").focus()
    page.locator(".md-search__input").press_sequentially("negative controls")
    page.locator(".md-search-result__item").first.wait_for()
    page.locator(".md-search-result__link[href*='verdict_rules.html']").first.click()
    page.wait_for_url("**/verdict_rules.html*")
    assert complaints == []
    page.close()


DEFECTS = {
    "<p style='color: #999'>pale</p>": "contrast 2.85 of 4.5",
    "<p style='opacity: .5'>half</p>": "contrast",
    "<div style='background: #333'><p style='color: #555'>dark on dark</p></div>": "contrast",
    "<input type=text>": "no label",
    "<button></button>": "no name",
    "<a href='#'><img src='data:,' alt=''></a>": "no name",
    "<img src='data:,'>": "no alternative text",
    "<svg role=img width=9 height=9></svg>": "no alternative text",
    "<h4>deep</h4>": "heading of level 4 after 1",
    "<h1>another</h1>": "not one heading of level 1",
    "<p id=a></p><p id=a></p>": "id given twice",
    "<p style='width: 1300px'>wide</p>": "page is 1",
    "<div style='overflow-x: auto'><table style='width: 1400px'><tr><td>a</table></div>": "table is 1400 wide",
}


def test_each_defect_of_a_page_is_found(browser: Browser) -> None:
    whole = (
        "<!doctype html><html lang=en><head><title>t</title><meta name=viewport content='width=device-width'>"
        "<style>body{background:#fff;color:#111;overflow-x:auto}</style></head><body><h1>Title</h1>"
        "<p style='color: #767676'>just dark enough</p><label>Name <input></label><button aria-label=Close></button>%s"
    )
    page = browser.new_page()
    page.set_content(whole % "")
    assert page_faults(page) == []
    missed = []
    for defect, expected in DEFECTS.items():
        page.set_content(whole % defect)
        if not any(expected in fault for fault in page_faults(page)):
            missed.append(defect)
    page.set_content((whole % "").replace(" lang=en", "").replace("<title>t</title>", ""))
    assert {"no language", "no title"} <= {fault.split(": ")[1] for fault in page_faults(page)}
    assert missed == []
    page.close()
