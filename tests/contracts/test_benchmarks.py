"""Benchmarks name wrong options before they measure anything, and their results say what was measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.evaluation import machine_busy_ticks

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("benchmarks.env --only steps,nothing", "--only: no 'nothing'; there are steps, reset"),
        ("benchmarks.neighbours --only nothing", "--only: no 'nothing'; there are spin, fork bomb"),
        (
            "benchmarks.ray_rollouts --cases waiting,nothing",
            "--cases: no 'nothing'; there are waiting, sandboxes, busy",
        ),
        ("benchmarks.real_rows --dataset x --share 2", "--share: expected I/N, such as 0/2, got '2'"),
        ("benchmarks.real_rows --dataset x --share 2/2", "--share: of 2 the parts are 0 to 1, got 2"),
        (
            "benchmarks.adapters --python nowhere",
            "--python: there is no nowhere. Try: scripts/test_adapter.sh peers --make",
        ),
        ("benchmarks.tampering --keep", "--keep: with --only"),
        ("benchmarks.make_tasks", "--archives, --work"),
    ],
)
def test_a_wrong_option_ends_a_benchmark_at_once(command: str, message: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, "-m", *command.split()],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 2 and message in ran.stderr and "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--write --only 001", "--only: with --check"),
        ("--check nowhere", "no package nowhere; there are calends"),
        ("--check --only 999 calends", "calends: no bug 999; there are 001"),
    ],
)
def test_the_script_for_mini_names_what_it_cannot_do(options: str, message: str) -> None:
    script = ROOT / "scripts" / "validate_mini.py"
    ran = subprocess.run([sys.executable, script, *options.split()], capture_output=True, text=True, check=False)
    assert ran.returncode != 0 and message in ran.stderr


def test_results_that_are_being_written_do_not_make_a_checkout_dirty(tmp_path: Path) -> None:
    for folder, files in {"benchmarks": ("records.py",), "swe_trainers": ("__init__.py", "files.py")}.items():
        (tmp_path / folder).mkdir()
        for name in files:
            (tmp_path / folder / name).write_bytes((ROOT / folder / name).read_bytes())
    (tmp_path / "benchmarks" / "results").mkdir()
    (tmp_path / "benchmarks" / "results" / "mine.json").write_text("{}")
    (tmp_path / ".gitignore").write_text("__pycache__\n")
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "one"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)

    def dirty() -> bool:
        code = "import json; from benchmarks.records import commit; print(json.dumps(commit()))"
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        ran = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, check=True
        )
        found = json.loads(ran.stdout)
        assert len(found["commit"]) == 40
        return bool(found["dirty"])

    (tmp_path / "benchmarks" / "results" / "mine.json").write_text("{1: 2}")
    assert not dirty()
    (tmp_path / "swe_trainers" / "__init__.py").write_text("")
    assert dirty()


def test_time_that_other_guests_took_is_not_counted_as_work() -> None:
    line = "cpu  10 20 30 4000 5000 60 70 80000 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n"
    assert machine_busy_ticks(line) == 10 + 20 + 30 + 60 + 70
