"""Settings of all tests: in CI only tests that need a GPU may be skipped, and Ctrl-C interrupts started programs."""

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
