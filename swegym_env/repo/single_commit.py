"""Repositories of one commit: made from a checkout, and checked to hold nothing else.

The configuration of a repository that somebody else made is never used: only its objects are read.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from swegym_env.errors import RepositoryError
from swegym_env.repo.git import Git
from swegym_env.repo.objects import COMMIT_TIME_S, REPOSITORY_CONFIG
from swegym_env.sandbox.identity import own
from swegym_env.sandbox.layers import mark_opaque

__all__ = ["check_single_commit", "commit_files", "commit_patch", "initialize", "list_tracked", "seal"]


def initialize(testbed: Path, purpose: str) -> Git:
    """Make an empty repository on branch `main` in the directory `testbed`, and return what runs git there."""
    git = Git(purpose, testbed)
    git.run("init", "-q", "--template=", "--initial-branch=main")
    (testbed / ".git" / "config").write_text(REPOSITORY_CONFIG)
    return git


def commit_patch(git: Git, testbed: Path, patch: str) -> None:
    """Replace the only commit by one with `patch` applied; no object of the former state remains."""
    date = git.text("show", "-s", "--format=%ct +0000", "HEAD").strip()
    _apply(git, patch)
    (testbed / ".git" / "shallow").unlink(missing_ok=True)
    _commit_index(git, testbed, date)


def commit_files(git: Git, testbed: Path, tracked: Sequence[str], patch: str) -> None:
    """Commit the files of `testbed`: those that git does not ignore and those of `tracked`, with `patch` applied."""
    (testbed / ".git" / "info").mkdir(exist_ok=True)
    (testbed / ".git" / "info" / "exclude").write_text("/.venv/\n")
    git.run("add", "-A")
    present = [path for path in tracked if os.path.lexists(testbed / path)]
    git.run("update-index", "--add", "-z", "--stdin", stdin="".join(f"{path}\0" for path in present))
    if patch:
        _apply(git, patch)
    _commit_index(git, testbed, f"{COMMIT_TIME_S} +0000")


def list_tracked(objects: Path, commit: str, purpose: str) -> list[str]:
    """The paths of a commit in another repository's object directory; empty where it does not hold the commit."""
    with tempfile.TemporaryDirectory(prefix="swegym-git-") as scratch:
        git = Git(purpose, scratch)
        git.run("init", "-q", "--bare", "--template=")
        (Path(scratch) / "objects/info").mkdir(exist_ok=True)
        (Path(scratch) / "objects/info/alternates").write_text(f"{objects}\n")
        try:
            listed = git.text("ls-tree", "-r", "-z", "--name-only", commit)
        except RepositoryError:
            return []
    return [path for path in listed.split("\0") if path]


def seal(git: Git, testbed: Path) -> None:
    """Finish a repository: owner, file times, index, no leftovers; then check that it holds one commit.

    Everything belongs to the sandbox's user afterwards, and all files carry one time, as in all repositories: equal
    files of several commits can be stored once, and git trusts the index of old files.

    Raises:
        RepositoryError: it holds more than its one commit.
    """
    metadata = testbed / ".git"
    for directory, names, files in os.walk(testbed):
        place = Path(directory)
        own(place)
        dated = place != metadata and metadata not in place.parents
        for name in files:
            own(place / name)
            if dated:
                os.utime(place / name, (COMMIT_TIME_S, COMMIT_TIME_S), follow_symlinks=False)
        for name in names:
            if (place / name).is_symlink():
                own(place / name)
    git.run("update-index", "-q", "--refresh")
    for leftover in ("logs", "ORIG_HEAD", "FETCH_HEAD", "hooks", "branches", "description"):
        target = metadata / leftover
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)
    check_single_commit(git, testbed, git.text("rev-parse", "HEAD").strip())
    own(metadata / "index")
    mark_opaque(metadata)


def check_single_commit(git: Git, testbed: Path, commit: str) -> None:
    """Check that a repository holds one commit and nothing else: no other ref, reflog, object or object store.

    Raises:
        RepositoryError: it does; the message names the first.
    """
    reachable = git.text("rev-list", "--objects", "--missing=allow-any", commit)
    present = git.text("cat-file", "--batch-all-objects", "--unordered", "--batch-check=%(objectname)").split()
    refs = git.text("for-each-ref", "--format=%(objectname) %(refname)").splitlines()
    objects = sorted(set(present) - {line.split()[0] for line in reachable.splitlines()})
    others = [ref.partition(" ")[2] for ref in refs if not ref.startswith(commit)]
    stores = [name for name in ("objects/info/alternates", "logs", "worktrees") if (testbed / ".git" / name).exists()]
    for kind, found in (("object", objects), ("ref", others), ("store", stores)):
        if found:
            raise RepositoryError(
                f"{git.purpose}: its layer would show more than that commit: {len(found)} {kind}(s), "
                f"the first {found[0]}"
            )


def _apply(git: Git, patch: str) -> None:
    git.run("update-index", "-q", "--refresh")
    try:
        git.run("apply", "--index", "--whitespace=nowarn", "-", stdin=patch)
    except RepositoryError as error:
        raise RepositoryError(f"{error}: the task's own base_patch does not apply") from error


def _commit_index(git: Git, testbed: Path, date: str) -> None:
    """Make the index the repository's only commit, and that commit's objects its only objects."""
    identity = {
        f"GIT_{role}_{part}": value
        for role in ("AUTHOR", "COMMITTER")
        for part, value in (("NAME", "swegym"), ("EMAIL", "swegym@localhost"), ("DATE", date))
    }
    tree = git.text("write-tree", "--missing-ok").strip()
    commit = git.text("commit-tree", tree, "-m", "base", env=identity).strip()
    git.run("update-ref", "refs/heads/main", commit)
    fresh = testbed / ".git" / "fresh"
    fresh.mkdir()
    pack = f"{fresh.absolute()}/pack"
    git.run("pack-objects", "-q", "--revs", "--missing=allow-any", pack, stdin=f"{commit}\n")
    objects = testbed / ".git" / "objects"
    shutil.rmtree(objects)
    (objects / "info").mkdir(parents=True)
    fresh.rename(objects / "pack")
