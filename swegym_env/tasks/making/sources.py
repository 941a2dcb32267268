"""Projects to make tasks from: source archives, directories and git repositories, read into memory.

Archives are somebody else's: nothing is unpacked on the disk, no link in them is followed or kept, and nothing of them
is run. What leaves the tree, or swells beyond all reason, is refused.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import os
import re
import stat
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from swegym_env.errors import ConfigurationError
from swegym_env.tasks.making.history import Commit, is_url, read_head

__all__ = ["File", "Source", "is_test_path", "read_source"]

MAX_BYTES = 512 << 20
MAX_FILES = 50_000
_ARCHIVES = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar", ".zip")
_LEFT_OUT = frozenset({".git", "__pycache__", ".venv", "venv", ".tox", ".nox", "node_modules", ".hg", ".svn"})
_UNREADABLE = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError),
    *(EOFError, OSError, NotImplementedError, RuntimeError),  # encrypted, of an unknown method, cut short
)
_REQUIREMENT = re.compile(r"[A-Za-z0-9][^\n'`$\\]*")  # goes into a command line, between single quotes
_TEST_GROUPS = ("test", "tests", "testing", "test-utils", "dev-test")
_TEST_DIRECTORIES = frozenset({"test", "tests", "testing", "testcases"})

File = tuple[int, bytes]
"""The mode as git has it (0o100644, 0o100755, 0o120000), and the content."""


@dataclass(frozen=True)
class Source:
    """A project as it should be.

    Attributes:
        name: of the project, fit for an instance id.
        version: as its metadata says; empty where they do not.
        files: path → mode and content.
        requirements: what its metadata say its tests need.
        history: its latest commits, newest first; none of an archive.
        notes: what was passed over, one line each.
    """

    name: str
    version: str
    files: Mapping[str, File]
    requirements: tuple[str, ...] = ()
    history: tuple[Commit, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """The same for equal files under equal names."""
        told = hashlib.sha256()
        for path in sorted(self.files):
            mode, content = self.files[path]
            told.update(f"{path}\0{mode:o}\0{len(content)}\0".encode("utf-8", "surrogateescape") + content)
        return told.hexdigest()


def read_source(place: str, *, history: int = 200) -> Source:
    """Read the project at `place`.

    Args:
        place: a source archive (`.tar.gz`, `.zip`, …), a directory, a git repository (a clone, bare or not; its last
            commit counts), or a URL that git can clone.
        history: how many of its latest commits are looked at.
    Raises:
        ConfigurationError: there is no such thing, or an archive that is damaged, leaves its tree or is too large.
        RepositoryError: git cannot read the repository.
    """
    path = Path(place).expanduser()
    commits: tuple[Commit, ...] = ()
    notes: list[str] = []
    if is_url(place):
        files, commits = read_head(place, history)
        name = place.rstrip("/").rpartition("/")[2].removesuffix(".git")
    elif not path.exists():
        raise ConfigurationError(f"{place}: no such archive, directory or repository")
    elif path.is_file():
        files = dict(_checked(_without_top(list(_members(path, notes))), place))
        name = path.name
    elif (path / ".git").exists() or ((path / "HEAD").is_file() and (path / "objects").is_dir()):
        files, commits = read_head(str(path.absolute()), history)
        name = path.absolute().name.removesuffix(".git")
    else:
        files = dict(_checked(_walk(path, notes), place))
        name = path.absolute().name
    if not any(file.endswith(".py") for file in files):
        raise ConfigurationError(f"{place}: no Python file in it")
    named, version = _identity(files)
    stem = re.sub(r"-\d.*$", "", next((name[: -len(end)] for end in _ARCHIVES if name.endswith(end)), name))
    return Source(
        name=re.sub(r"[^A-Za-z0-9]+", "-", named or stem).strip("-").lower() or "project",
        version=version,
        files=files,
        requirements=_requirements(files),
        history=commits,
        notes=tuple(notes),
    )


def is_test_path(path: str) -> bool:
    """Whether a path of a repository belongs to its tests."""
    *directories, name = path.split("/")
    if _TEST_DIRECTORIES.intersection(directories) or name == "conftest.py":
        return True
    return bool(re.fullmatch(r"test_.*\.py|.*_tests?\.py|tests?\.py", name))


def _members(path: Path, notes: list[str]) -> Iterator[tuple[str, File]]:
    """(path, file) of each regular file in an archive; links and devices are passed over and noted."""
    passed_over = 0
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                for entry in archive.infolist():
                    kind = stat.S_IFMT(entry.external_attr >> 16)
                    if entry.is_dir():
                        continue
                    if kind not in (0, stat.S_IFREG):
                        passed_over += 1
                        continue
                    executable = (entry.external_attr >> 16) & 0o100
                    with archive.open(entry) as opened:
                        yield entry.filename, (_mode(executable), opened.read(MAX_BYTES + 1))
        else:
            with tarfile.open(path) as tar:
                for member in tar:
                    content = tar.extractfile(member) if member.isreg() else None
                    if content is not None:
                        yield member.name, (_mode(member.mode & 0o100), content.read(MAX_BYTES + 1))
                    elif not member.isdir():
                        passed_over += 1
    except _UNREADABLE as error:
        said = (str(error).splitlines() or [type(error).__name__])[0].rstrip(":. ")
        raise ConfigurationError(
            f"{path}: cannot be read as an archive: {said}. Expected one of {', '.join(_ARCHIVES)}"
        ) from error
    if passed_over:
        notes.append(f"{path.name}: {passed_over} links and special files were passed over")


def _without_top(members: list[tuple[str, File]]) -> list[tuple[str, File]]:
    """The members without the one directory (`NAME-VERSION/`) that source archives have everything in."""
    members = [(name.removeprefix("./"), file) for name, file in members]
    tops = {name.partition("/")[0] for name, _ in members}
    if len(tops) == 1 and all("/" in name for name, _ in members) and not tops & {"..", ""}:
        return [(name.partition("/")[2], file) for name, file in members]
    return members


def _walk(root: Path, notes: list[str]) -> Iterator[tuple[str, File]]:
    """(path, file) of each regular file of a directory; links are neither followed nor kept."""
    passed_over = 0
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in _LEFT_OUT and not name.endswith(".egg-info"))
        for name in sorted(names):
            path = os.path.join(folder, name)
            status = os.lstat(path)
            if not stat.S_ISREG(status.st_mode):
                passed_over += 1
                continue
            with open(path, "rb") as file:
                yield os.path.relpath(path, root), (_mode(status.st_mode & 0o100), file.read(MAX_BYTES + 1))
    if passed_over:
        notes.append(f"{root}: {passed_over} links and special files were passed over")


def _mode(executable: int) -> int:
    return 0o100755 if executable else 0o100644


def _checked(members: Iterable[tuple[str, File]], place: str) -> Iterator[tuple[str, File]]:
    """The members with their paths in git's form; refuses what leaves the tree or is too much."""
    size = 0
    for number, (name, file) in enumerate(members, 1):
        path = PurePosixPath(name.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or "\0" in name or not path.parts:
            raise ConfigurationError(f"{place}: {name!r} leaves the tree; nothing of this archive was used")
        size += len(file[1])
        if size > MAX_BYTES or number > MAX_FILES:
            raise ConfigurationError(
                f"{place}: expected at most {MAX_BYTES >> 20} MiB in {MAX_FILES} files, got more "
                f"(at {name!r}: {size >> 20} MiB, file {number})"
            )
        if any(part.lower() in (".git", "__pycache__") or part.endswith(".egg-info") for part in path.parts):
            continue
        yield str(path), file


def _identity(files: Mapping[str, File]) -> tuple[str, str]:
    """Name and version as `PKG-INFO` or `pyproject.toml` have them; empty where they do not say."""
    found: dict[str, str] = {}
    if "PKG-INFO" in files:
        for line in io.StringIO(files["PKG-INFO"][1].decode("utf-8", "replace")):
            if not line.strip():
                break
            field, _, value = line.partition(":")
            found.setdefault(field, value.strip())
    project = _project(files).get("project", {})
    project = project if isinstance(project, dict) else {}
    name, version = (found.get(field) or project.get(field.lower(), "") for field in ("Name", "Version"))
    return str(name or ""), str(version or "")


def _project(files: Mapping[str, File]) -> dict[str, Any]:
    try:
        return tomllib.loads(files["pyproject.toml"][1].decode("utf-8")) if "pyproject.toml" in files else {}
    except (UnicodeDecodeError, tomllib.TOMLDecodeError):
        return {}  # pip will say what is wrong with it


def _requirements(files: Mapping[str, File]) -> tuple[str, ...]:
    """What `pyproject.toml` lists for tests: extras and dependency groups that are named after them."""
    data = _project(files)
    project = data.get("project", {})
    groups = [data.get("dependency-groups", {})]
    groups.append(project.get("optional-dependencies", {}) if isinstance(project, dict) else {})
    found: dict[str, None] = {}
    for group in groups:
        for name in _TEST_GROUPS:
            listed = group.get(name, []) if isinstance(group, dict) else []
            for requirement in listed if isinstance(listed, list) else []:
                # A group may include another, as a table: those of the usual names are looked at anyway.
                if isinstance(requirement, str) and _REQUIREMENT.fullmatch(requirement.replace("'", '"')):
                    found.setdefault(requirement.replace("'", '"'))
    return tuple(found)
