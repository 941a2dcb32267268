"""Settings of all tests: what CI may skip, what a campaign makes needless, and that Ctrl-C interrupts programs."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator

import pytest

pytest_plugins = ["tests.browser"]


def pytest_configure() -> None:
    """Let SIGINT interrupt what the tests start: a shell lets what it runs in the background ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out a sample whose campaign is run too: the campaign does all that the sample does."""
    campaigns = {_function(item) for item in items if item.get_closest_marker("campaign")}
    needless = [item for item in items if item.get_closest_marker("sample") and _function(item) in campaigns]
    if needless:
        config.hook.pytest_deselected(items=needless)
        items[:] = [item for item in items if item not in needless]


def _function(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def fail_if_forbidden(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip that CI forbids into a failure that gives the reason."""
    if os.environ.get("CI") != "true" or not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
    if "GPU" not in reason:
        report.outcome = "failed"
        report.longrepr = f"in CI this may not be skipped (only what needs a GPU may): {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    fail_if_forbidden(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    fail_if_forbidden(report)
    return report
