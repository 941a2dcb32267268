"""A sample stands for its campaign where that is left out, and is left out where it runs; see tests/conftest.py."""

from __future__ import annotations

import subprocess
import sys

from tests.programs import ROOT

SAMPLED = "tests/env/tasks/test_mini.py::test_gold_and_test_patch_applied_by_git_give_the_correct_repository"


def collected(*arguments: str) -> list[str]:
    """The parameters of the tests that pytest finds of one function with a sample and a campaign."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [line.partition("[")[2].rstrip("]") for line in done.stdout.splitlines() if line.startswith("tests/")]


def test_a_sample_is_run_exactly_where_its_campaign_is_not() -> None:
    assert collected(SAMPLED) == ["1"]
    assert collected(SAMPLED, "-m", "not campaign") == ["7"]
