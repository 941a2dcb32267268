"""Repository layers: one commit of a task's repository, and nothing of what came after it.

A SWE-bench task is unfair as soon as the fix can be read from git. So the layer holds a repository of its own that
never saw more than the one commit: no remote, tag, reflog, pack or object of another one. The files lie under
`testbed/`, so that the layer overlays as `/testbed`.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

from swegym_env.errors import RepositoryError
from swegym_env.sandbox.identity import own, sandbox_user
from swegym_env.sandbox.layers import LayerStore, mark_opaque
from swegym_env.tasks.git_writer import REPOSITORY_CONFIG, write_repository
from swegym_env.tasks.lone_commits import commit_patch, git, isolated_git_environment, settle
from swegym_env.tasks.task import Task

__all__ = ["find_repository", "repository_layer"]

_REVISION = re.compile(r"[0-9a-f]{7,40}(~[1-9])?")
_URL = re.compile(r"^([a-z][a-z0-9+.-]*://|[^/\s]+@[^/\s]+:)", re.IGNORECASE)


def repository_layer(
    task: Task,
    repos: str | os.PathLike[str] | None = None,
    store: LayerStore | None = None,
    *,
    commit: str | None = None,
) -> Path:
    """The layer with the repository of `task` at its base commit (or at `commit`), built if need be.

    Args:
        repos: where git repositories come from: a directory of clones named `owner+name`, `owner+name/repo`,
            `owner/name` or `name`, each with or without `.git`; one clone; or a URL. None: `task.repository`, else
            `https://github.com/owner/name`. Of no concern to a task with `files`.
        store: None: the store in `work_dir()`.
        commit: another commit of the same repository.
    Raises:
        RepositoryError: git is missing, there is no such repository, it has no such commit, or a path of `files` leaves
        the tree.
    """
    store = store or LayerStore()
    if task.files:
        return store.get_or_build(_files_key(task), lambda layer: _write_files(task, layer))
    wanted = commit or task.base_commit
    if not _REVISION.fullmatch(wanted):
        raise RepositoryError(f"{task.instance_id}: base_commit must be 40 hex digits, got {wanted!r}")
    patch = "" if commit else task.base_patch
    key = ("repository", task.repo, wanted, *([patch] if patch else []))
    published = store.path_of(key)
    if published.is_dir():
        return store.get_or_build(key, _unreachable)
    source = find_repository(task.repo, task.repository or None if repos is None else repos)
    lacking = _lacking(task.repo, source, wanted)
    if lacking:  # whoever has a whole clone later gets a whole layer
        key = (*key, "without", *lacking)
    return store.get_or_build(key, lambda layer: _export(task.repo, source, wanted, patch, layer))


def find_repository(repo: str, repos: str | os.PathLike[str] | None = None) -> str:
    """What git can fetch `repo` (owner/name) from: a path or a URL.

    Raises:
        RepositoryError: `repos` is a directory that does not hold `repo`.
    """
    if repos is None:
        return f"https://github.com/{repo}"
    text = os.fspath(repos)
    if _URL.match(text):
        return text
    directory = Path(text).expanduser().absolute()
    if _isgit(directory):
        return str(directory)
    owner, _, name = repo.partition("/")
    stems = (f"{owner}+{name}", f"{owner}/{name}", f"{owner}__{name}", name)
    candidates = [directory / f"{stem}{suffix}" for stem in stems for suffix in ("", ".git", "/repo", "/repo.git")]
    for candidate in candidates:
        if _isgit(candidate):
            return str(candidate)
    raise RepositoryError(
        f"no clone of {repo} under {directory}: looked for {owner}+{name}, {owner}/{name} and {name}. "
        f"Try: git clone --bare https://github.com/{repo} {directory}/{owner}+{name}"
    )


def _isgit(directory: Path) -> bool:
    bare = (directory / "HEAD").is_file() and (directory / "objects").is_dir()
    return bare or (directory / ".git").exists()


def _unreachable(_layer: Path) -> None:
    raise RepositoryError("a published layer vanished while it was asked for. Try again")


def _files_key(task: Task) -> tuple[str, ...]:
    return ("files", *(part for path in sorted(task.files) for part in (path, task.files[path])))


def _write_files(task: Task, layer: Path) -> None:
    for path in task.files:
        parts = path.split("/")
        if (
            path.startswith("/")
            or any(part in ("", ".", "..") or part.lower() == ".git" for part in parts)
            or "\0" in path
        ):
            raise RepositoryError(f"{task.instance_id}: files: {path!r} is no path inside a repository")
    testbed = layer / "testbed"
    testbed.mkdir()
    user = sandbox_user()
    write_repository(testbed, task.files, owner=None if user == (os.geteuid(), os.getegid()) else user)
    own(testbed)
    mark_opaque(testbed / ".git")


def _export(repo: str, source: str, wanted: str, patch: str, layer: Path) -> None:
    """Write the repository layer of a revision, with `patch` applied where it is not empty."""
    what = f"{repo} at {wanted[:12]}{wanted[40:]} from {source}"
    with isolated_git_environment() as environment, tempfile.TemporaryDirectory(prefix="swegym-fetch-") as scratch:
        commit = wanted
        if not re.fullmatch(r"[0-9a-f]{40}", wanted):
            source = _with_history(source, wanted, Path(scratch), environment, what)
            parse = ["-C", source, "rev-parse", "--verify", "--quiet", f"{wanted}^{{commit}}"]
            try:
                commit = git(parse, environment, what).strip()
            except RepositoryError as error:
                raise RepositoryError(
                    f"{what}: the repository has no such commit. Try: git -C {source} fetch --all"
                ) from error
        testbed = layer / "testbed"
        testbed.mkdir()
        _export_commit(source, commit, testbed, environment, what)
        if patch:
            commit_patch(patch, testbed, environment, what)
        settle(testbed, environment, what)


def _with_history(source: str, wanted: str, scratch: Path, environment: dict[str, str], what: str) -> str:
    """A repository that `wanted`, a shortened commit or the one before a commit, can be looked up in."""
    if not _URL.match(source):
        return source
    commit, _, before = wanted.partition("~")
    if len(commit) != 40:
        raise RepositoryError(
            f"{what}: a shortened commit cannot be fetched. Try: --repos DIRECTORY with a whole clone of the repository"
        )
    git(["init", "-q", "--bare", "--template=", str(scratch)], environment, what)
    depth = f"--depth={1 + int(before or 0)}"
    fetch = ["-C", str(scratch), "fetch", "-q", depth, "--no-tags", "--no-write-fetch-head", source, commit]
    _with_known_commit(lambda: git(fetch, environment, what), source, what)
    return str(scratch)


def _export_commit(source: str, commit: str, testbed: Path, environment: dict[str, str], what: str) -> None:
    inside = ["-C", str(testbed)]
    git(["init", "-q", "--template=", "--initial-branch=main", str(testbed)], environment, what)
    (testbed / ".git" / "config").write_text(REPOSITORY_CONFIG)
    missing = [] if _URL.match(source) else _missing_objects(source, commit, environment, what)
    if missing:
        _copy_present(source, commit, testbed, environment, what)
    else:
        # A plain path would make git ignore --depth and link the whole history.
        url = source if _URL.match(source) else f"file://{source}"
        fetch = [*inside, "fetch", "-q", "--depth=1", "--no-tags", "--no-write-fetch-head", url, commit]
        _with_known_commit(lambda: git(fetch, environment, what), source, what)
    git([*inside, "update-ref", "refs/heads/main", commit], environment, what)
    git([*inside, "read-tree", commit], environment, what)
    if missing:
        names = [
            f"{line.partition(chr(9))[2]}\0" for line in _tree(testbed, environment, what) if line.split()[2] in missing
        ]
        git([*inside, "update-index", "-z", "--skip-worktree", "--stdin"], environment, what, stdin="".join(names))
    git([*inside, "checkout-index", "-q", "-a", "-f"], environment, what)


def _with_known_commit(step: Callable[[], object], source: str, what: str) -> None:
    """Run `step`, and say it plainly where it fails because the source has no such commit."""
    try:
        step()
    except RepositoryError as error:
        unknown = ("not our ref", "couldn't find remote ref", "bad object", "bad revision", "unknown revision")
        if any(sign in str(error) for sign in unknown):
            raise RepositoryError(
                f"{what}: the repository has no such commit. Try: git -C {source} fetch --all"
            ) from error
        raise


def _lacking(repo: str, source: str, wanted: str) -> tuple[str, ...]:
    """The blobs of a commit that a clone on this machine lacks."""
    if _URL.match(source) or not re.fullmatch(r"[0-9a-f]{40}", wanted):
        return ()
    with isolated_git_environment() as environment:
        return tuple(_missing_objects(source, wanted, environment, f"{repo} at {wanted[:12]} from {source}"))


def _missing_objects(source: str, commit: str, environment: dict[str, str], what: str) -> list[str]:
    """Blobs of the commit that a clone lacks: mirrors leave large files out. Git cannot fetch from such a clone."""
    listed: list[str] = []
    command = ["-C", source, "rev-list", "--objects", "--missing=print", "--no-walk", commit]
    _with_known_commit(lambda: listed.extend(git(command, environment, what).splitlines()), source, what)
    return [line[1:] for line in listed if line.startswith("?")]


def _copy_present(source: str, commit: str, testbed: Path, environment: dict[str, str], what: str) -> None:
    """Copy the objects of one commit that the clone has; the files of the others will be absent, and git be told so."""
    listed = git(["-C", source, "rev-list", "--objects", "--missing=print", "--no-walk", commit], environment, what)
    present = "".join(f"{line.split()[0]}\n" for line in listed.splitlines() if not line.startswith("?"))
    pack = testbed / ".git" / "objects" / "pack" / "base"
    git(["-C", source, "pack-objects", "-q", str(pack)], environment, what, stdin=present)
    (testbed / ".git" / "shallow").write_text(f"{commit}\n")


def _tree(testbed: Path, environment: dict[str, str], what: str) -> list[str]:
    listed = git(["-C", str(testbed), "ls-tree", "-r", "-z", "HEAD"], environment, what)
    return [line for line in listed.split("\0") if line]
