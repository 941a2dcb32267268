"""The rules of tests/conftest.py: what may be skipped, on a small suite in another process, and samples."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.programs import ROOT

SUITE = """
import pytest

@pytest.mark.skipif(True, reason="needs an NVIDIA GPU")
def test_that_needs_a_gpu(): raise AssertionError

@pytest.mark.skipif(True, reason="Apptainer is not installed; run scripts/install_apptainer.sh")
def test_that_needs_apptainer(): raise AssertionError

def test_that_gives_up(): pytest.skip("no time today")

@pytest.mark.xfail(strict=True, reason="a known bug")
def test_that_is_known_to_fail(): raise AssertionError

def test_that_passes(): pass
"""
MODULE_THAT_IS_SKIPPED = "import pytest\npytest.importorskip('a_module_that_nobody_has')\n"

SAMPLED = "tests/env/tasks/test_mini.py::test_gold_and_test_patch_applied_by_git_give_the_correct_repository"


def outcome(folder: Path, ci: str) -> str:
    """The last line that pytest prints for the suite above."""
    (folder / "conftest.py").write_text(Path(__file__).parents[1].joinpath("conftest.py").read_text())
    (folder / "test_suite.py").write_text(SUITE)
    (folder / "test_whole_module.py").write_text(MODULE_THAT_IS_SKIPPED)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--continue-on-collection-errors", "."]
    environment = {**os.environ, "CI": ci, "PYTEST_ADDOPTS": "", "PYTHONPATH": str(Path(__file__).parents[2])}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # importing the plugins takes longer than the suite
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return ran.stdout.strip().splitlines()[-1]


def test_outside_ci_a_skip_is_a_skip(tmp_path: Path) -> None:
    assert outcome(tmp_path, "").startswith("1 passed, 4 skipped, 1 xfailed in")


def test_in_ci_only_what_needs_a_gpu_may_be_skipped(tmp_path: Path) -> None:
    assert outcome(tmp_path, "true").startswith("1 failed, 1 passed, 1 skipped, 1 xfailed, 2 errors in")


def collected(*arguments: str) -> list[str]:
    """The parameters of the tests that pytest finds of one function with a sample and a campaign."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [line.partition("[")[2].rstrip("]") for line in done.stdout.splitlines() if line.startswith("tests/")]


def test_a_sample_is_run_exactly_where_its_campaign_is_not() -> None:
    assert collected(SAMPLED) == ["1"]
    assert collected(SAMPLED, "-m", "not campaign") == ["7"]
