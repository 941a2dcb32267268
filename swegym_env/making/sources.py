"""Projects to make tasks from: source archives, directories and git repositories, read into memory.

Archives are not trusted: nothing is unpacked to disk, links are neither followed nor kept, and nothing is executed.
Paths outside the archive and unreasonable sizes are refused.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import os
import re
import stat
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from swegym_env.errors import ConfigurationError
from swegym_env.languages import Language, all_languages
from swegym_env.paths import expand
from swegym_env.repo.git import Git
from swegym_env.repo.objects import Blob
from swegym_env.repo.repositories import is_url

__all__ = ["Commit", "Source", "is_test_of", "is_test_path", "read_source", "source_language"]

MAX_BYTES = 512 << 20
MAX_FILES = 50_000
_ARCHIVES = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar", ".zip")
_SKIPPED_DIRECTORIES = frozenset(
    {".git", "__pycache__", ".venv", "venv", ".tox", ".nox", "node_modules", ".hg", ".svn"}
)
_UNREADABLE = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError),
    *(EOFError, OSError, NotImplementedError, RuntimeError),  # encrypted, unknown compression, truncated
)
_REQUIREMENT = re.compile(r"[A-Za-z0-9][^\n'`$\\]*")  # becomes part of a command line, in single quotes
_TEST_GROUPS = ("test", "tests", "testing", "test-utils", "dev-test")
_TEST_DIRECTORIES = frozenset({"test", "tests", "testing", "testcases"})

_MANIFESTS = {
    "python": ("pyproject.toml", "setup.py", "setup.cfg"),
    "javascript": ("package.json",),
    "c": ("Makefile", "CMakeLists.txt", "configure.ac", "meson.build"),
}

_CLONE_TIMEOUT_S = 3600.0
_MODES = (0o100644, 0o100755, 0o120000)


@dataclass(frozen=True)
class Commit:
    """One commit of a repository's own history.

    Attributes:
        commit: its id.
        patch: all its changes, as a git diff.
    """

    commit: str
    patch: str


@dataclass(frozen=True)
class Source:
    """A project without injected bugs.

    Attributes:
        name: the project's name, in the form of an instance id.
        version: from its metadata; empty if they have none.
        files: path → mode and content.
        requirements: the requirements of its tests, from its metadata.
        history: its latest commits, newest first; empty for an archive.
        notes: what was skipped, one line each.
    """

    name: str
    version: str
    files: Mapping[str, Blob]
    requirements: tuple[str, ...] = ()
    history: tuple[Commit, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """Equal for equal files under equal names."""
        digest = hashlib.sha256()
        for path in sorted(self.files):
            mode, content = self.files[path]
            digest.update(f"{path}\0{mode:o}\0{len(content)}\0".encode("utf-8", "surrogateescape") + content)
        return digest.hexdigest()


def read_source(place: str, *, history: int = 200) -> Source:
    """Read the project at `place`.

    Args:
        place: a source archive (`.tar.gz`, `.zip`, …), a directory, a git repository (a clone, bare or not; its last
            commit is read), or a URL that git can clone.
        history: number of latest commits to read.
    Raises:
        ConfigurationError: nothing is there, or the archive is damaged, too large, or has paths outside of it.
        RepositoryError: git cannot read the repository.
    """
    path = expand(place)
    commits: tuple[Commit, ...] = ()
    notes: list[str] = []
    if is_url(place):
        files, commits = _read_head(place, history)
        name = place.rstrip("/").rpartition("/")[2].removesuffix(".git")
    elif not path.exists():
        raise ConfigurationError(f"{place}: no such archive, directory or repository")
    elif path.is_file():
        files = dict(_checked(_without_top(list(_members(path, notes))), place))
        name = path.name
    elif (path / ".git").exists() or ((path / "HEAD").is_file() and (path / "objects").is_dir()):
        files, commits = _read_head(str(path.absolute()), history)
        name = path.absolute().name.removesuffix(".git")
    else:
        files = dict(_checked(_walk(path, notes), place))
        name = path.absolute().name
    if not any(_counts(files).values()):
        known = ", ".join(language.name for language in _counts(files))
        raise ConfigurationError(f"{place}: no source file in it; expected one of {known}")
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


def source_language(files: Collection[str]) -> Language:
    """The language that tasks are made in: that of a manifest, and of most files."""
    counts = _counts(files)
    named = [language for language in counts if any(name in files for name in _MANIFESTS.get(language.name, ()))]
    return max(named or counts, key=lambda language: counts[language])


def _counts(files: Collection[str]) -> dict[Language, int]:
    """Language that bugs can be injected in → number of its files; Python first."""
    known = [language for language in all_languages() if language.name == "python" or language.bug_kinds]
    return {language: sum(PurePosixPath(file).suffix in language.suffixes for file in files) for language in known}


def is_test_of(language: Language, path: str) -> bool:
    """Whether a path belongs to the tests of a project in `language`, or configures how they run."""
    *directories, name = path.split("/")
    return bool(language.test_directories.intersection(directories) or language.protected_files.search(name))


def is_test_path(path: str) -> bool:
    """Whether a path of a repository belongs to its tests."""
    *directories, name = path.split("/")
    if _TEST_DIRECTORIES.intersection(directories) or name == "conftest.py":
        return True
    return bool(re.fullmatch(r"test_.*\.py|.*_tests?\.py|tests?\.py", name))


def _read_head(place: str, history: int) -> tuple[dict[str, Blob], tuple[Commit, ...]]:
    """The files of the last commit of the repository at `place` (a path or a URL), and its latest commits."""
    with tempfile.TemporaryDirectory(prefix="swegym-make-") as private:
        clone = Path(private, "repository.git")
        url = place if is_url(place) else f"file://{place}"
        depth = f"--depth={history + 1}"
        Git(place).run("clone", "-q", "--bare", depth, "--", url, str(clone), timeout_s=_CLONE_TIMEOUT_S)
        cut = set((clone / "shallow").read_text().split()) if (clone / "shallow").exists() else set()
        git = Git(place, None, f"--git-dir={clone}")
        entries = [entry.split(b"\t", 1) for entry in git.run("ls-tree", "-r", "-z", "HEAD").split(b"\0") if entry]
        wanted = [(int(about.split()[0], 8), about.split()[2], path) for about, path in entries]
        wanted = [entry for entry in wanted if entry[0] in _MODES]
        blobs = _read_blobs(git, [oid for _, oid, _ in wanted])
        files = {
            path.decode("utf-8", "surrogateescape"): (mode, blob)
            for (mode, _, path), blob in zip(wanted, blobs, strict=True)
        }
        log = ["log", f"--max-count={history}", "--no-merges", "-p", "--no-color", "--no-ext-diff"]
        log += ["--no-textconv", "--no-renames", "--full-index", "--format=%x00%H"]
        text = git.text(*log) if history else ""
    parts = [part.partition("\n") for part in text.split("\0") if part]
    # A commit at which the history was cut seems to have added everything.
    return files, tuple(Commit(commit, patch.lstrip("\n")) for commit, _, patch in parts if commit not in cut)


def _read_blobs(git: Git, oids: Sequence[bytes]) -> list[bytes]:
    output = git.run("cat-file", "--batch", stdin=b"".join(oid + b"\n" for oid in oids))
    blobs, at = [], 0
    for _ in oids:
        end = output.index(b"\n", at)
        size = int(output[at:end].split()[2])
        blobs.append(output[end + 1 : end + 1 + size])
        at = end + 2 + size
    return blobs


def _members(path: Path, notes: list[str]) -> Iterator[tuple[str, Blob]]:
    """(path, file) of each regular file in an archive; links and devices are skipped and noted."""
    skipped = 0
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                for entry in archive.infolist():
                    kind = stat.S_IFMT(entry.external_attr >> 16)
                    if entry.is_dir():
                        continue
                    if kind not in (0, stat.S_IFREG):
                        skipped += 1
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
                        skipped += 1
    except _UNREADABLE as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(":. ")
        raise ConfigurationError(
            f"{path}: cannot be read as an archive: {reason}. Expected one of {', '.join(_ARCHIVES)}"
        ) from error
    if skipped:
        notes.append(f"{path.name}: {skipped} links and special files were skipped")


def _without_top(members: list[tuple[str, Blob]]) -> list[tuple[str, Blob]]:
    """The members without the directory (`NAME-VERSION/`) that holds everything in a source archive."""
    members = [(name.removeprefix("./"), file) for name, file in members]
    tops = {name.partition("/")[0] for name, _ in members}
    if len(tops) == 1 and all("/" in name for name, _ in members) and not tops & {"..", ""}:
        return [(name.partition("/")[2], file) for name, file in members]
    return members


def _walk(root: Path, notes: list[str]) -> Iterator[tuple[str, Blob]]:
    """(path, file) of each regular file of a directory; links are neither followed nor kept."""
    skipped = 0
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(
            name for name in folders if name not in _SKIPPED_DIRECTORIES and not name.endswith(".egg-info")
        )
        for name in sorted(names):
            path = os.path.join(folder, name)
            status = os.lstat(path)
            if not stat.S_ISREG(status.st_mode):
                skipped += 1
                continue
            with open(path, "rb") as file:
                yield os.path.relpath(path, root), (_mode(status.st_mode & 0o100), file.read(MAX_BYTES + 1))
    if skipped:
        notes.append(f"{root}: {skipped} links and special files were skipped")


def _mode(executable: int) -> int:
    return 0o100755 if executable else 0o100644


def _checked(members: Iterable[tuple[str, Blob]], place: str) -> Iterator[tuple[str, Blob]]:
    """The members with their paths in git's form; refuses paths outside the archive and too much content."""
    size = 0
    for number, (name, file) in enumerate(members, 1):
        path = PurePosixPath(name.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or "\0" in name or not path.parts:
            raise ConfigurationError(f"{place}: {name!r} is outside the archive, which is refused as a whole")
        size += len(file[1])
        if size > MAX_BYTES or number > MAX_FILES:
            raise ConfigurationError(
                f"{place}: expected at most {MAX_BYTES >> 20} MiB in {MAX_FILES} files, got more "
                f"(at {name!r}: {size >> 20} MiB, file {number})"
            )
        if any(part.lower() in (".git", "__pycache__") or part.endswith(".egg-info") for part in path.parts):
            continue
        yield str(path), file


def _identity(files: Mapping[str, Blob]) -> tuple[str, str]:
    """Name and version from `PKG-INFO` or `pyproject.toml`; empty if neither has them."""
    found: dict[str, str] = {}
    if "PKG-INFO" in files:
        for line in io.StringIO(files["PKG-INFO"][1].decode("utf-8", "replace")):
            if not line.strip():
                break
            field, _, value = line.partition(":")
            found.setdefault(field, value.strip())
    project = _project(files).get("project", {}) or _package(files)
    project = project if isinstance(project, dict) else {}
    name, version = (found.get(field) or project.get(field.lower(), "") for field in ("Name", "Version"))
    return str(name or ""), str(version or "")


def _package(files: Mapping[str, Blob]) -> dict[str, Any]:
    """`package.json`; empty if there is none, or npm would not read it."""
    try:
        data = json.loads(files["package.json"][1])
    except (KeyError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _project(files: Mapping[str, Blob]) -> dict[str, Any]:
    try:
        return tomllib.loads(files["pyproject.toml"][1].decode("utf-8")) if "pyproject.toml" in files else {}
    except (UnicodeDecodeError, tomllib.TOMLDecodeError):
        return {}  # pip reports what is wrong with it


def _requirements(files: Mapping[str, Blob]) -> tuple[str, ...]:
    """The requirements that `pyproject.toml` lists in extras and dependency groups named after tests."""
    data = _project(files)
    project = data.get("project", {})
    groups = [data.get("dependency-groups", {})]
    groups.append(project.get("optional-dependencies", {}) if isinstance(project, dict) else {})
    found: dict[str, None] = {}
    for group in groups:
        for name in _TEST_GROUPS:
            listed = group.get(name, []) if isinstance(group, dict) else []
            for requirement in listed if isinstance(listed, list) else []:
                # A group may include another one, as a table: the usual names are all read anyway.
                if isinstance(requirement, str) and _REQUIREMENT.fullmatch(requirement.replace("'", '"')):
                    found.setdefault(requirement.replace("'", '"'))
    return tuple(found)
