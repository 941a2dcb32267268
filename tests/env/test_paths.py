"""Directories of users with a home directory, and of users without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from swegym_env.paths import expand
from tests.programs import ROOT

_AS_ANOTHER_USER = ("unshare", "--user", "--map-user=12345", "--map-group=12345")


def _run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `swegym` as a user whom this machine does not know, as containers do that run with any user id."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("HOME", "SWEGYM_", "XDG_"))
    }
    environment |= {"PYTHONPATH": str(ROOT), **variables}
    command = [*_AS_ANOTHER_USER, sys.executable, "-m", "swegym_env", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_user_without_a_home_directory_is_asked_for_a_work_directory(tmp_path: Path) -> None:
    done = _run("images", "list")
    named = "swegym: images and layers: user 12345 has no home directory for them. Try: SWEGYM_WORKDIR=/large/disk\n"
    assert (done.returncode, done.stderr) == (2, named)
    for variables in ({"SWEGYM_WORKDIR": str(tmp_path)}, {"XDG_CACHE_HOME": str(tmp_path)}, {"HOME": str(tmp_path)}):
        done = _run("images", "list", **variables)
        assert (done.returncode, done.stderr) == (0, "") and f"in {tmp_path}" in done.stdout


def test_the_home_of_an_unknown_user_is_no_such_file() -> None:
    assert expand("~nobody-of-this-name/rows") == Path("~nobody-of-this-name/rows")
    assert expand("~/rows") == Path(os.path.expanduser("~"), "rows")
    done = _run("tasks", "--dataset", "~nobody-of-this-name/rows.jsonl")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and "there is no such file" in done.stderr
