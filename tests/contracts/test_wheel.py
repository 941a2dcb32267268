"""The wheel, built from the source archive and installed where the checkout is not visible (see make test-package)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.contracts.test_distribution import PROJECT, ROOT
from tests.places import public_directory
from tests.programs import run_to_end

Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]
NOT_SOURCE = (".*", "runs", "build", "dist", "*.egg-info", "__pycache__")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a program of an environment with this wheel; its dependencies come from the checkout's environment."""
    place = tmp_path_factory.mktemp("wheel")
    source = place / "source"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(*NOT_SOURCE))
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(place), str(source)]
    built = subprocess.run(build, cwd=place, capture_output=True, text=True, timeout=200, check=False)
    assert built.returncode == 0, built.stdout[-2000:] + built.stderr[-2000:]
    shutil.rmtree(source)
    (wheel,) = place.glob("*.whl")
    venv.create(place / "venv", symlinks=True)
    paths = sysconfig.get_paths(vars={"base": str(place / "venv"), "platbase": str(place / "venv")})
    # Only the folder: .pth files in it, through which an editable project is found, are not read.
    Path(paths["purelib"], "others.pth").write_text(sysconfig.get_paths()["purelib"])
    python = place / "venv/bin/python"
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "-qq",
        "--no-deps",
        "--no-index",
        str(wheel),
    ]
    subprocess.run(install, check=True, capture_output=True, timeout=120)

    def run(program: str, *arguments: str, stdin: str = "") -> Done:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SWEGYM_"))}
        with public_directory("wheel") as machine:
            environment |= {"SWEGYM_WORKDIR": str(machine / "work"), "SWEGYM_RUNDIR": str(machine / "run")}
            return run_to_end([str(python.with_name(program)), *arguments], environment, cwd=place, stdin=stdin)

    return run


def test_episode_runs_from_the_wheel_alone(run: Run) -> None:
    where = run("python", "-c", "import swegym_env, swe_trainers; print(swegym_env.__file__, swe_trainers.__file__)")
    assert str(ROOT) not in where.stdout and where.stdout.count("site-packages") == 2
    assert run("swegym", "doctor").returncode == 0
    played = run("swegym", "run", "--dataset", "mini", "--tools", "default", stdin="search --help\nsubmit\n")
    assert played.returncode == 0, played.stderr
    assert "usage: search" in played.stdout and "FAIL_TO_PASS 0/" in played.stdout


@pytest.mark.parametrize("program", sorted(PROJECT["scripts"]))
def test_every_program_prints_the_version_of_pyproject(run: Run, program: str) -> None:
    assert run(program, "--version").stdout == f"{program} {PROJECT['version']}\n"
