"""An agent searches for the repair in git, in caches and in other sandboxes, and finds nothing."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from swegym_env.grading.grading import grade
from swegym_env.prepare import prepare_locally
from swegym_env.sandbox import Sandbox, open_sandbox
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.task import Task

from .cases import BUGGY, FILES, FIXED, TASK, diff

_MARK = "secret-of-the-host"
_REPAIR = {"calc/add.py": f"# {_MARK}\n{FIXED}"}


@dataclass(frozen=True)
class Search:
    """A way to look for what the agent may not see.

    Attributes:
        command: what the agent runs; `$FIX` is the repair's commit, which it may know by heart.
        naive: whether it finds something in an ordinary clone.
        honest: a command near it that works inside, and a part of its output.
    """

    command: str
    naive: bool
    honest: tuple[str, str]


SEARCHES = {
    "later commits": Search("git log --all -p", True, ("git log --oneline", "base")),
    "tags": Search("git tag -l; git for-each-ref", True, ("git for-each-ref", "refs/heads/")),
    "branches": Search("git branch -a --contains HEAD; git show later", True, ("git branch", "*")),
    "the reflog": Search("git reflog --all; cat .git/logs/HEAD", True, ("git rev-parse HEAD", "")),
    "remotes": Search("git remote -v; cat .git/config", True, ("cat .git/config", "[core]")),
    "a fetch": Search("git fetch origin 2>&1; git log -p FETCH_HEAD 2>&1", True, ("git rev-parse HEAD", "")),
    "the commit by heart": Search("git show $FIX", True, ("git show HEAD", "calc/add.py")),
    "a cherry-pick": Search("git cherry-pick $FIX; git diff HEAD~1", True, ("git cherry-pick --quit; echo ok", "ok")),
    "dangling objects": Search(
        "for o in $(git fsck --unreachable --no-reflogs | cut -d' ' -f3); do git show $o; done",
        True,
        ("git fsck && echo ok", "ok"),
    ),
    "every object there is": Search(
        "git cat-file --batch-all-objects --batch", True, ("git cat-file --batch-all-objects --batch-check", "commit")
    ),
    "packs": Search(
        "for i in .git/objects/pack/*.idx; do git verify-pack -v $i; done",
        True,
        ("git count-objects -v", "garbage: 0"),
    ),
    "objects without git": Search(
        "python3 -c \"import pathlib, zlib\nfor p in pathlib.Path('.git').rglob('*'):\n"
        "    if p.is_file():\n        d = p.read_bytes()\n        print(p, d)\n"
        '        try: print(zlib.decompress(d))\n        except zlib.error: pass"',
        True,
        ("ls .git", "HEAD"),
    ),
    "alternates": Search(
        "cat .git/objects/info/alternates .git/objects/info/http-alternates", False, ("ls .git/objects", "")
    ),
    "stashes": Search("git stash list -p", True, ("git stash list; echo ok", "ok")),
    "notes": Search("git log --show-notes='*' --all", True, ("git notes list; echo ok", "ok")),
    "heads left over": Search(
        "cat .git/ORIG_HEAD .git/FETCH_HEAD .git/packed-refs .git/info/refs", True, ("cat .git/HEAD", "ref:")
    ),
    "work trees and modules": Search(
        "git worktree list; ls -R .git/worktrees .git/modules", False, ("git worktree list", "/testbed")
    ),
    "an index of other files": Search(
        "git ls-files -s; git diff --cached HEAD", False, ("git ls-files", "calc/add.py")
    ),
    "the environment": Search("env; cat /proc/*/environ /proc/*/cmdline | tr '\\0' '\\n'", False, ("env", "HOME=")),
    "caches of installers": Search(
        "grep -rIls secret-of-the ~ /tmp /var /opt /root /home /run /dev/shm /testbed 2>/dev/null",
        False,
        ("ls -d ~", "/"),
    ),
    "other sandboxes": Search(
        "cat /tmp/other /dev/shm/other /testbed/other; cat /proc/*/root/testbed/other /proc/*/cwd/other",
        False,
        ("touch /tmp/mine && cat /tmp/mine && echo ok", "ok"),
    ),
    "the package that judges": Search(
        "python3 -c 'import swegym_env'; find / -xdev -name 'swegym*' -path '*grading*' 2>/dev/null | grep . ",
        False,
        ("python3 -c 'import calc.add; print(1)'", "1"),
    ),
    "the test patch": Search(
        "ls tests; grep -r test_sum . /tmp; cat /tmp/.swegym-patch", False, ("ls tests", "test_add")
    ),
    "layers below": Search(
        "for d in $(grep -o '/[^:, ]*layers/[^:, ]*' /proc/self/mountinfo); do ls -la $d; cat $d/testbed/calc/add.py;"
        " ls $d/..; done | grep -v denied",
        False,
        ("grep -q overlay /proc/self/mountinfo && echo overlays", "overlays"),
    ),
}


def _git(directory: Path, *arguments: str) -> str:
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "HOME": str(directory.parent)}
    settings = ["-c", "user.name=x", "-c", "user.email=x@x", "-c", "safe.directory=*"]
    return subprocess.run(
        ["git", *settings, "-C", str(directory), *arguments], check=True, capture_output=True, text=True, env=env
    ).stdout.strip()


def _commit(clone: Path, files: dict[str, str], message: str) -> str:
    for path, text in files.items():
        (clone / path).parent.mkdir(parents=True, exist_ok=True)
        (clone / path).write_text(text)
    _git(clone, "add", "-A")
    _git(clone, "commit", "-qm", message)
    return _git(clone, "rev-parse", "HEAD")


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A clone with a past and a future: its directory, the base commit and that of the repair."""
    origin = tmp_path_factory.mktemp(_MARK) / "origin"
    origin.mkdir()
    _git(origin, "init", "-q", "-b", "trunk")
    _commit(origin, {"calc/add.py": BUGGY + "\n"}, "past")
    base = _commit(origin, FILES, "base")
    fix = _commit(origin, _REPAIR, f"Repair add: {_MARK}")
    _git(origin, "tag", "v2")
    _git(origin, "branch", "later")
    clone = tmp_path_factory.mktemp("clones") / "some+calc"
    _git(origin, "clone", "-q", str(origin), str(clone))
    _git(clone, "branch", "later", "origin/later")
    _git(clone, "notes", "add", "-m", _MARK, fix)
    (clone / "calc/add.py").write_text(f"{FIXED}# {_MARK}\n")
    _git(clone, "stash")
    lost = _commit(clone, {"lost.txt": _MARK}, "lost")
    _git(clone, "reset", "-q", "--hard", base)
    _git(clone, "pack-refs", "--all")
    _git(clone, "repack", "-q", "-a", "-k")
    assert lost in _git(clone, "fsck", "--unreachable", "--no-reflogs")
    return clone, base, fix


@pytest.fixture(scope="module")
def inside(upstream: tuple[Path, str, str], store: LayerStore) -> Iterator[Sandbox]:
    """An agent's sandbox, after the gold patch was graded and while another sandbox holds it."""
    clone, base, _ = upstream
    task = Task(
        **{
            **{name: getattr(TASK, name) for name in TASK.__dataclass_fields__},
            "base_commit": base,
            "files": {},
            "patch": diff(FILES, {**FILES, **_REPAIR}),
        }
    )
    assert grade(task, task.patch, repos=clone.parent, store=store, backend="namespace").resolved
    spec = prepare_locally(task, repos=clone.parent, store=store, backend="namespace").spec
    other, sandbox = (open_sandbox(spec, backend="namespace") for _ in range(2))
    try:
        other.start()
        other.run(f"for p in /tmp /dev/shm /testbed; do echo {_MARK} > $p/other; done; sleep 60 &")
        sandbox.start()
        yield sandbox
    finally:
        sandbox.close()
        other.close()


@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES.keys())
def test_the_repair_cannot_be_found_in_the_sandbox(
    search: Search, inside: Sandbox, upstream: tuple[Path, str, str], tmp_path: Path
) -> None:
    clone, base, fix = upstream
    secrets = (_MARK, fix, fix[:7], "test_sum")
    if search.naive:
        copy = tmp_path / "copy"
        subprocess.run(["cp", "-a", str(clone), str(copy)], check=True)
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "FIX": fix, "PAGER": "cat"}
        plain = subprocess.run(["bash", "-c", search.command], cwd=copy, env=env, capture_output=True, check=False)
        assert any(secret.encode() in plain.stdout for secret in secrets), (
            "no attack: an ordinary clone reveals nothing"
        )
    found = inside.run(f"cd /testbed; FIX={fix}; {search.command}").output
    printed = [
        line for line in found.splitlines() if not line.startswith(("fatal:", "error:"))
    ]  # these repeat the question
    assert not [line for line in printed if any(secret in line for secret in secrets)]
    command, expected = search.honest
    answer = inside.run(f"cd /testbed; {command}")
    assert answer.exit_code == 0
    assert expected in answer.output
    assert inside.run("git -C /testbed rev-parse HEAD").output.strip() == base
