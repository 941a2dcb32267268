"""The page of an evaluation, in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from swe_trainers.evaluation.report import render_report
from swe_trainers.evaluation.summary import summarise
from tests.browser import OpenPage, page_faults

HOSTILE = "</script><img src=x onerror='window.hacked=1'>{{7*7}}"


Show = Callable[..., Page]


@pytest.fixture
def show(open_page: OpenPage, tmp_path: Path) -> Show:
    """Opens the report of these rows."""

    def page_of(rows: list[dict[str, Any]], *, samples: int = 1, model: str = "m") -> Page:
        settings = {"samples": samples, "model": model, "environment": "E-v0", "arguments": {"dataset": "mini"}}
        summary = summarise(rows, planned=len(rows), settings=settings)
        path = tmp_path / "report.html"
        path.write_text(render_report(rows, summary, tmp_path), encoding="utf-8", errors="backslashreplace")
        return open_page(path, viewport={"width": 1200, "height": 900})

    return page_of


def _row(name: str, resolved: bool | None, **more: Any) -> dict[str, Any]:
    tokens = {
        "requests": 4,
        "prompt_tokens": 1000,
        "completion_tokens": 100,
        "cached_tokens": 0,
        "uncounted_requests": 0,
    }
    tests = {"fail_to_pass": [1, 2], "pass_to_pass": [3, 3], "failed_tests": [], "failure_reason": ""}
    took = {"turns": 4, "patch_lines": 2, "cost": 0.5, "seconds": 2.0, "model_seconds": 1.0, "return": 1.0}
    which = {"instance_id": name, "sample": 0, "episode": None, "end_reason": "submitted"}
    return {**which, "resolved": resolved, "valid": resolved is not None, **tests, **tokens, **took, **more}


ROWS = [
    _row("a__x-1", True, turns=9),
    _row("a__x-2", False, turns=30, failed_tests=["t.py::test_a"]),
    _row("b__y-3", True, turns=10),
    _row("b__y-4", None, end_reason="error", failure_reason="EngineError: down", turns=0),
]


def _shown(page: Page) -> list[str]:
    return page.locator("tbody.episode:visible button.open").all_text_contents()


def test_report_shows_the_figures_of_the_summary(show):
    page = show(ROWS)
    assert page.title() == "m on mini"
    assert page.locator("#rate").text_content() == "66.7 %"
    text = page.locator("body").inner_text()
    for expected in (
        "2 of 3; 95 % interval",
        "4 of 4 episodes",
        "$2.00",
        "4,000",
        "1 × EngineError: down",
        "b__y",
        "1 of 2",
    ):
        assert expected in text
    assert page.locator("#chips button").all_text_contents() == ["resolved 2", "failed 1", "invalid 1"]


def test_episodes_are_filtered_sorted_and_opened(show, tmp_path):
    (tmp_path / "episodes").mkdir()
    (tmp_path / "episodes" / "patch.diff").write_bytes(b"--- a/m\n+++ b/m\n@@ -1 +1 @@\n-old\n+new \xff\n")
    page = show([*ROWS[:1], {**ROWS[1], "episode": "episodes"}, *ROWS[2:]])
    assert _shown(page) == ["a__x-1", "a__x-2", "b__y-3", "b__y-4"]
    page.locator("#chips button", has_text="resolved").click()
    assert _shown(page) == ["a__x-1", "b__y-3"] and page.locator("#shown").text_content() == "2 of 4"
    page.locator("#search").fill("B__Y")
    assert _shown(page) == ["b__y-3"]
    page.locator("#search").fill("")
    page.locator("#chips button", has_text="resolved").click()
    turns = page.locator("th button", has_text="turns")
    turns.click()
    assert _shown(page) == ["b__y-4", "a__x-1", "b__y-3", "a__x-2"]  # as numbers: 0, 9, 10, 30
    turns.click()
    assert _shown(page) == ["a__x-2", "b__y-3", "a__x-1", "b__y-4"]
    page.get_by_role("button", name="a__x-2").click()
    detail = page.locator("tr.detail:visible")
    assert detail.count() == 1 and "t.py::test_a" in detail.inner_text()
    assert detail.locator("span.add").text_content() == "+new \ufffd"
    assert "repaired tests 1 of 2" in detail.inner_text()


def test_hostile_names_and_patches_are_escaped(show, tmp_path):
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "patch.diff").write_text(f"+{HOSTILE}\n")
    row = _row(HOSTILE, False, failure_reason=HOSTILE, end_reason=HOSTILE, failed_tests=[HOSTILE], episode="e")
    page = show([row, _row("\ud800", None, failure_reason=HOSTILE)], model=HOSTILE)
    page.locator("button.open").first.click()
    assert page.evaluate("[window.hacked, document.images.length, document.scripts.length]") == [None, 0, 1]
    assert page.locator("h1").text_content() == f"{HOSTILE} on mini"
    assert page.locator("span.add").text_content() == f"+{HOSTILE}"


def test_samples_are_shown_with_pass_at_k(show):
    rows = [_row("a-1", True), _row("a-1", False, sample=1), _row("b-1", False), _row("b-1", False, sample=1)]
    text = show(rows, samples=2).locator("body").inner_text()
    assert "pass@1" in text and "25.0 %" in text and "50.0 %" in text and "a-1 #1" in text


def test_episodes_of_an_environment_without_kept_tests_are_shown(show):
    page = show([_row("a-1", False, pass_to_pass=None)])
    page.locator("button.open").click()
    detail = page.locator("tr.detail:visible").inner_text()
    assert "repaired tests 1 of 2; return" in detail and "kept" not in detail


@pytest.mark.parametrize("rows", [[], [_row("a-1", None, failure_reason="x")]])
def test_evaluation_without_valid_episodes_has_a_report(show, rows):
    assert "Nothing was measured" in show(rows).locator("body").inner_text()


def test_report_shows_returns_without_verdicts(show):
    rows = [{**_row("episode-0", None), "valid": True, "return": 2.5, "patch_lines": None, "cost": None}]
    text = show(rows).locator("body").inner_text()
    assert "Mean return" in text and "2.5" in text and "not known" in text


def test_page_is_accessible_and_links_to_the_episodes(show):
    page = show([*ROWS, _row("c__z-5", False, episode="episodes/c__z-5 #1", failed_tests=["t.py::test_b"])], samples=2)
    page.get_by_role("button", name="c__z-5").click()
    assert page.locator("tr.detail:visible a").get_attribute("href") == "view.html#c__z-5%20%231"
    assert page_faults(page) == []
