"""Settings of all tests: what CI may skip, what a campaign makes needless, and that Ctrl-C interrupts programs."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Generator

import pytest

pytest_plugins = ["tests.browser"]

# Files that take one to several minutes each, though some have few tests.
_LONG = tuple(
    f"tests/{name}.py"
    for name in (
        *("redteam/test_adaptive", "redteam/test_unneeded_files", "redteam/test_c", "redteam/test_blind"),
        *("contracts/test_commands", "trainers/scale/test_sharding", "trainers/scale/test_ray"),
        *("trainers/algorithms/test_algorithms", "examples/test_examples", "examples/test_plugin"),
        *("env/sandbox/test_reaping", "env/programs/test_real_agents", "env/cli/test_cli", "env/answers/test_tasks"),
        *("trainers/kernels/test_benchmark", "trainers/evaluation/test_evaluate", "trainers/algorithms/test_training"),
        *("env/adapters/test_adapters", "trainers/kernels/test_triton", "trainers/kernels/test_compiled"),
        *("trainers/engines/test_training_with_a_server", "examples/test_demo", "examples/test_chaos"),
        *("trainers/test_ranks", "trainers/scale/test_torchrun", "contracts/test_pages"),
    )
)


def pytest_configure() -> None:
    """Let SIGINT interrupt what the tests start: a shell lets what it runs in the background ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--campaigns", default="0/1", metavar="I/N", help="of the campaigns, every N-th test from the I-th"
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out other shares of the campaigns, and samples whose whole campaign is run; put long files first.

    With `--no-loadscope-reorder` processes take files in this order, and none is left alone with a long one at the end.
    """
    place, of = map(int, config.getoption("--campaigns").split("/"))
    campaigns = [item for item in items if item.get_closest_marker("campaign")]
    apart = {item for number, item in enumerate(campaigns) if number % of != place}
    whole = {_function(item) for item in campaigns} - {_function(item) for item in apart}
    apart |= {item for item in items if item.get_closest_marker("sample") and _function(item) in whole}
    if apart:
        config.hook.pytest_deselected(items=[item for item in items if item in apart])
    length = Counter(item.path for item in items)
    kept = [item for item in items if item not in apart]
    items[:] = sorted(kept, key=lambda item: (not item.nodeid.startswith(_LONG), -length[item.path], item.path))


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
