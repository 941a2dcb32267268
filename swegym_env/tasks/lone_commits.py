"""Repositories of one commit: how they are made on the host, and how it is seen that nothing else is in them.

Git runs here without anybody's configuration, hooks or prompts, and never with the configuration of a repository that a
stranger made.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from swegym_env.errors import RepositoryError
from swegym_env.sandbox.identity import own
from swegym_env.sandbox.layers import mark_opaque
from swegym_env.tasks.git_writer import COMMIT_TIME_S, REPOSITORY_CONFIG

__all__ = [
    "check_alone",
    "commit_files",
    "commit_patch",
    "git",
    "isolated_git_environment",
    "list_tracked",
    "settle",
]


@contextmanager
def isolated_git_environment() -> Iterator[dict[str, str]]:
    """An environment for git on the host in which no configuration, hook or prompt of anybody counts."""
    with tempfile.TemporaryDirectory(prefix="swegym-git-") as home:
        config = Path(home) / "gitconfig"
        # The user named the repository: who owns it does not matter. Any commit may be asked for by its id.
        config.write_text(
            "[safe]\n\tdirectory = *\n[uploadpack]\n\tallowAnySHA1InWant = true\n"
            "[protocol]\n\tversion = 2\n[core]\n\thooksPath = /dev/null\n"
        )
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("GIT_") or name in ("GIT_SSL_CAINFO", "GIT_PROXY_COMMAND", "GIT_SSH_COMMAND")
        }
        yield environment | {
            "GIT_CONFIG_GLOBAL": str(config),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_LFS_SKIP_SMUDGE": "1",
            "LC_ALL": "C",
        }


def git(arguments: Sequence[str], environment: dict[str, str], what: str, *, stdin: str = "") -> str:
    """Run git on the host; its standard output."""
    try:
        done = subprocess.run(
            ["git", *arguments],
            env=environment,
            input=stdin,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            check=False,
        )
    except FileNotFoundError:
        raise RepositoryError(f"{what}: git is not installed. Try: apt install git") from None
    if done.returncode != 0:
        told = _telling_line(done.stderr)
        command = arguments[2] if arguments[0] == "-C" else arguments[0]
        raise RepositoryError(f"{what}: git {command} exited with {done.returncode}: {told}")
    return done.stdout


def _telling_line(stderr: str) -> str:
    """The line of git's messages that says why; the last is often only a consequence."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    causes = [line for line in lines if "fatal:" in line or "error:" in line]
    return (causes or lines or ["no message"])[0]


def settle(testbed: Path, environment: dict[str, str], what: str) -> None:
    """Give the repository to the sandbox's user and its files the time of their commit, and see that it is alone.

    Raises:
        RepositoryError: it holds more than its one commit.
    """
    _date_and_own(testbed, int(git(["-C", str(testbed), "show", "-s", "--format=%ct", "HEAD"], environment, what)))
    git(["-C", str(testbed), "update-index", "-q", "--refresh"], environment, what)
    for leftover in ("logs", "ORIG_HEAD", "FETCH_HEAD", "hooks", "branches", "description"):
        target = testbed / ".git" / leftover
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)
    commit = git(["-C", str(testbed), "rev-parse", "HEAD"], environment, what).strip()
    check_alone(testbed, commit, environment, what)
    own(testbed / ".git" / "index")
    mark_opaque(testbed / ".git")


def check_alone(testbed: Path, commit: str, environment: dict[str, str], what: str) -> None:
    """See that a repository holds one commit and nothing besides: no ref, reflog, object or store of another.

    Raises:
        RepositoryError: it does; the text says what.
    """
    inside = ["-C", str(testbed)]
    reachable = git([*inside, "rev-list", "--objects", "--missing=allow-any", commit], environment, what)
    listing = ["cat-file", "--batch-all-objects", "--unordered", "--batch-check=%(objectname)"]
    present = set(git([*inside, *listing], environment, what).split())
    refs = git([*inside, "for-each-ref", "--format=%(objectname) %(refname)"], environment, what).splitlines()
    strays = sorted(present - {line.split()[0] for line in reachable.splitlines()})
    others = [ref.partition(" ")[2] for ref in refs if not ref.startswith(commit)]
    stores = [name for name in ("objects/info/alternates", "logs", "worktrees") if (testbed / ".git" / name).exists()]
    for kind, found in (("object", strays), ("ref", others), ("store", stores)):
        if found:
            raise RepositoryError(
                f"{what}: its layer would show more than that commit: {len(found)} {kind}(s), the first {found[0]}"
            )


def commit_patch(patch: str, testbed: Path, environment: dict[str, str], what: str) -> None:
    """Make the one commit one with `patch` in it; no object of the state before stays."""
    inside = ["-C", str(testbed)]
    date = git([*inside, "show", "-s", "--format=%ct +0000", "HEAD"], environment, what).strip()
    _apply(patch, testbed, environment, what)
    (testbed / ".git" / "shallow").unlink(missing_ok=True)
    _commit_index(testbed, date, environment, what)


def commit_files(testbed: Path, tracked: Sequence[str], patch: str, environment: dict[str, str], what: str) -> None:
    """Make the files in `testbed` a repository of one commit: all that git would not ignore, and those of `tracked`."""
    inside = ["-C", str(testbed)]
    git(["init", "-q", "--template=", "--initial-branch=main", str(testbed)], environment, what)
    (testbed / ".git" / "config").write_text(REPOSITORY_CONFIG)
    (testbed / ".git" / "info").mkdir(exist_ok=True)
    (testbed / ".git" / "info" / "exclude").write_text("/.venv/\n")
    git([*inside, "add", "-A"], environment, what)
    present = [path for path in tracked if os.path.lexists(testbed / path)]
    names = "".join(f"{path}\0" for path in present)
    git([*inside, "update-index", "--add", "-z", "--stdin"], environment, what, stdin=names)
    if patch:
        _apply(patch, testbed, environment, what)
    _commit_index(testbed, f"{COMMIT_TIME_S} +0000", environment, what)


def list_tracked(objects: Path, commit: str, environment: dict[str, str], what: str) -> list[str]:
    """The paths of a commit in somebody's object directory; nothing else of their repository is read.

    Empty where it does not hold the commit.
    """
    with tempfile.TemporaryDirectory(prefix="swegym-git-") as scratch:
        git(["init", "-q", "--bare", "--template=", scratch], environment, what)
        (Path(scratch) / "objects/info").mkdir(exist_ok=True)
        (Path(scratch) / "objects/info/alternates").write_text(f"{objects}\n")
        try:
            listed = git(["-C", scratch, "ls-tree", "-r", "-z", "--name-only", commit], environment, what)
        except RepositoryError:  # it does not hold the commit
            return []
    return [path for path in listed.split("\0") if path]


def _apply(patch: str, testbed: Path, environment: dict[str, str], what: str) -> None:
    git(["-C", str(testbed), "update-index", "-q", "--refresh"], environment, what)
    try:
        apply = ["-C", str(testbed), "apply", "--index", "--whitespace=nowarn", "-"]
        git(apply, environment, what, stdin=patch)
    except RepositoryError as error:
        raise RepositoryError(f"{error}: the task's own base_patch does not apply") from error


def _commit_index(testbed: Path, date: str, environment: dict[str, str], what: str) -> None:
    """Make the index the one commit that the repository has, and its objects all that it keeps."""
    inside = ["-C", str(testbed)]
    identity = {
        f"GIT_{role}_{part}": value
        for role in ("AUTHOR", "COMMITTER")
        for part, value in (("NAME", "swegym"), ("EMAIL", "swegym@localhost"), ("DATE", date))
    }
    tree = git([*inside, "write-tree", "--missing-ok"], environment, what).strip()
    commit = git([*inside, "commit-tree", tree, "-m", "base"], environment | identity, what).strip()
    git([*inside, "update-ref", "refs/heads/main", commit], environment, what)
    fresh = testbed / ".git" / "fresh"
    fresh.mkdir()
    pack = [*inside, "pack-objects", "-q", "--revs", "--missing=allow-any", str(fresh / "pack")]
    git(pack, environment, what, stdin=f"{commit}\n")
    objects = testbed / ".git" / "objects"
    shutil.rmtree(objects)
    (objects / "info").mkdir(parents=True)
    fresh.rename(objects / "pack")


def _date_and_own(testbed: Path, time_s: int) -> None:
    """Give everything to the sandbox's user, and date files by the commit: git trusts an index of old files."""
    git = testbed / ".git"
    for directory, names, files in os.walk(testbed):
        place = Path(directory)
        own(place)
        dated = place != git and git not in place.parents
        for name in files:
            own(place / name)
            if dated:
                os.utime(place / name, (time_s, time_s), follow_symlinks=False)
        for name in names:
            if (place / name).is_symlink():
                own(place / name)
