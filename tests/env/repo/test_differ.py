"""The git process behind patches restarts when it must, and never outlives its owner."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from swegym_env.errors import RepositoryError
from swegym_env.repo.differ import Differ, differ
from swegym_env.sandbox.layers import LayerStore


@pytest.fixture
def run_directory(public_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run directory for this test alone, so that leftovers can be counted."""
    directory = Path(tempfile.mkdtemp(dir=public_directory))
    monkeypatch.setenv("SWEGYM_RUNDIR", str(directory))
    return directory


def test_the_process_is_replaced_after_many_requests_and_after_a_crash(store: LayerStore) -> None:
    with contextlib.closing(Differ()) as one:
        before, after = {"a/b": (0o100644, b"1\n")}, {"a/b": (0o100644, b"2\n")}
        expected = one.diff(before, after)
        assert list(expected) == ["a/b"] and expected["a/b"].endswith("@@ -1 +1 @@\n-1\n+2\n")
        first = one.pid
        for _ in range(600):
            assert one.diff(before, after) == expected
        second = one.pid
        assert second not in (None, first)
        assert second is not None
        os.kill(second, signal.SIGKILL)
        with contextlib.suppress(RepositoryError):  # it may die before or after it is asked
            one.diff(before, after)
        assert one.diff(before, after) == expected
        big = one.diff({}, {"big": (0o100644, bytes(33 << 20))})
        assert big["big"].startswith("diff --git a/big b/big\nnew file")
        assert one.diff(before, after) == expected


def test_a_crashed_process_leaves_no_pipe_open(store: LayerStore) -> None:
    with contextlib.closing(Differ()) as one:
        before, after = {"a": (0o100644, b"1\n")}, {"a": (0o100644, b"2\n")}
        expected = one.diff(before, after)
        pid = one.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert one.diff(before, after) == expected
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            gc.collect()
        assert [str(one.message) for one in caught if "unclosed" in str(one.message)] == []


def test_git_and_its_directory_are_removed_when_the_owner_dies(run_directory: Path) -> None:
    program = (
        "import sys, time; from swegym_env.repo.differ import differ; "
        "d = differ(); d.diff({}, {'a': (0o100644, b'x')}); print(d.pids[0], flush=True); time.sleep(60)"
    )
    for number in (signal.SIGKILL, signal.SIGINT):
        with subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as one:
            assert one.stdout is not None
            git = int(one.stdout.readline())
            assert list(run_directory.glob(f"{one.pid}-*-differ"))
            one.send_signal(number)
        deadline = time.monotonic() + 10
        while list(run_directory.glob(f"{one.pid}-*")) or os.path.exists(f"/proc/{git}"):
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_a_forked_child_gets_its_own_differ() -> None:
    before, after = {"a": (0o100644, b"1\n")}, {"a": (0o100644, b"2\n")}
    expected = differ().diff(before, after)
    child = os.fork()
    if child == 0:
        right = differ().diff(before, after) == expected
        differ().close()
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert differ().diff(before, after) == expected


def test_threads_share_the_differs() -> None:
    def one(number: int) -> bool:
        text = differ().diff({}, {f"file-{number}": (0o100644, b"%d\n" % number)})
        return text[f"file-{number}"].endswith(f"+++ b/file-{number}\n@@ -0,0 +1 @@\n+{number}\n")

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one, range(64)))


def test_a_missing_git_is_a_one_line_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with contextlib.closing(Differ()) as one:
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(RepositoryError, match="git is not installed"):
            one.diff({}, {"a": (0o100644, b"x")})
        with pytest.raises(RepositoryError, match="git is not installed"):
            one.ignored({".gitignore": b"a\n"}, ["a"])


@pytest.mark.parametrize("programs", [("git", "setpriv"), ("git",)])
def test_git_has_no_rights_of_root(
    store: LayerStore, public_directory: Path, monkeypatch: pytest.MonkeyPatch, programs: tuple[str, ...]
) -> None:
    """Whether a program drops them or Python does, which takes longer."""
    places = Path(tempfile.mkdtemp(dir=public_directory))
    places.chmod(0o755)
    for name in programs:
        if found := shutil.which(name):
            (places / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(places))
    with contextlib.closing(Differ()) as one:
        assert list(one.diff({}, {"a": (0o100644, b"1\n")})) == ["a"]
        facts = dict(line.split(":\t", 1) for line in Path(f"/proc/{one.pid}/status").read_text().splitlines())
    ids = {0: 65534}.get(os.geteuid(), os.geteuid()), {0: 65534}.get(os.getegid(), os.getegid())
    assert [set(map(int, facts[name].split())) for name in ("Uid", "Gid")] == [{ids[0]}, {ids[1]}]
    if os.geteuid() == 0:
        assert facts["Groups"].split() == []
    assert {int(facts[name], 16) for name in ("CapPrm", "CapEff", "CapInh")} == {0}
