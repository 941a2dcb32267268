"""Plain patches applied in this process, exactly as `git apply` would, or not at all; and by git, for trusted ones.

Most patches are plain: hunks of text that fit where they say, in regular files whose content git reads and writes as it
is. To start git in a sandbox for one takes longer than many a test. Whatever is not certain to end as with git is not
plain: renames, deletions, binary data, unusual names, hunks that fit elsewhere or overlap, a file of attributes.
Positions and context are judged by the rules of git's `apply.c` (2.39): a hunk is tried first at the line that it names
in the patched file, and must end at the end of the file if it ends without context.
"""

from __future__ import annotations

import functools
import os
import posixpath
import re
import stat
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from swegym_env.repo.git import ANY_OWNER, Git
from swegym_env.repo.objects import REPOSITORY_CONFIG, Blob
from swegym_env.repo.patches import touched_paths

__all__ = ["Checkout", "PlainFile", "apply_plainly", "apply_to_files"]

_PATH = rb"[A-Za-z0-9_][A-Za-z0-9_.+-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.+-]*)*"
_HEADER = re.compile(
    rb"diff --git a/(?P<path>" + _PATH + rb") b/(?P=path)\n"
    rb"(?:new file mode (?P<new>100644|100755)\n)?"
    rb"(?:index [0-9a-f]{4,40}\.\.[0-9a-f]{4,40}(?: (?P<mode>100644|100755))?\n)?"
    rb"--- (?:(?P<old>a/(?P=path))|/dev/null)\n"
    rb"\+\+\+ b/(?P=path)\n"
)
_HUNK = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@(?: [^\n]*)?\n")
_LINE = re.compile(rb"[^\n]*\n|[^\n]+")
_NO_NEWLINE = b"\\ No newline at end of file\n"
_MODES = {0o644: b"100644", 0o755: b"100755"}
_CONFIGURATION = ("gitconfig", "gitattributes")
_HOMES = ("home/agent", "root")


@dataclass(frozen=True)
class PlainFile:
    """A regular file: its content and permissions, 0o644 or 0o755."""

    content: bytes
    mode: int


class _NotPlainError(Exception):
    """It takes git to apply the patch."""


def apply_plainly(patch: str, read: Callable[[str], PlainFile | None]) -> dict[str, PlainFile] | None:
    """The files that a git diff changes, as they are afterwards; None where it takes git to apply it.

    Args:
        patch: sections as git prints them, and nothing else but line breaks at the end.
        read: path → the file that is there, or None if nothing is; raises LookupError for anything else.
    """
    text = patch.encode("utf-8", "surrogateescape").rstrip(b"\n") + b"\n"
    after: dict[str, PlainFile] = {}
    at = 0
    try:
        while at < len(text):
            header = _HEADER.match(text, at)
            if header is None or bool(header["new"]) == bool(header["old"]):
                return None
            path = header["path"].decode()
            parents = {str(parent) for parent in Path(path).parents}
            if path in after or parents & after.keys():
                return None
            file = read(path)
            if (file is None) != (header["old"] is None):
                return None
            if header["mode"] and (file is None or _MODES[file.mode] != header["mode"]):
                return None
            content, at = _patched(b"" if file is None else file.content, text, header.end())
            mode = file.mode if file is not None else (0o755 if header["new"] == b"100755" else 0o644)
            after[path] = PlainFile(content, mode)
    except (_NotPlainError, LookupError):
        return None
    return after


def apply_to_files(patch: str, base: Path) -> tuple[dict[str, Blob], dict[str, Blob]]:
    """The files that a trusted patch touches in the repository `base`, before and after it; by git, in a folder apart.

    Returns:
        Path → file, twice. Paths that do not exist, and links, are absent.
    Raises:
        RepositoryError: git cannot apply it.
    """
    names = sorted(touched_paths(patch))
    with tempfile.TemporaryDirectory(prefix="swegym-apply-") as scratch:
        before = {path: blob for path in names if (blob := _read_blob(base / path)) is not None}
        for path, (mode, content) in before.items():
            place = Path(scratch, path)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
            place.chmod(mode & 0o777)
        if patch:
            ceiling = {"GIT_CEILING_DIRECTORIES": os.path.dirname(scratch)}
            Git("the patch of a task", scratch).run("apply", "--whitespace=nowarn", "-", stdin=patch, env=ceiling)
        return before, {path: blob for path in names if (blob := _read_blob(Path(scratch, path))) is not None}


def _read_blob(path: Path) -> Blob | None:
    if path.is_symlink() or not path.is_file():
        return None
    return (0o100755 if path.stat().st_mode & 0o100 else 0o100644, path.read_bytes())


def _patched(content: bytes, patch: bytes, at: int) -> tuple[bytes, int]:
    """The content after the hunks of `patch` from `at` on, and where they end."""
    before = _LINE.findall(content)
    after: list[bytes] = []
    done = 0
    first = at
    while hunk := _HUNK.match(patch, at):
        old_start, old_count, new_start, new_count = (int(number or 1) for number in hunk.groups())
        begin = old_start - 1 if old_count else 0
        if old_count == 0 and (before or old_start):
            raise _NotPlainError
        if begin < done or new_start - (new_count > 0) != len(after) + begin - done:
            raise _NotPlainError
        after += before[done:begin]
        at = hunk.end()
        removed, added, trailing, at = _sides(patch, at, old_count, new_count)
        done = begin + old_count
        if before[begin:done] != removed or (not trailing and done != len(before)):
            raise _NotPlainError
        after += added
    after += before[done:]
    if at == first or any(not line.endswith(b"\n") for line in after[:-1]):
        raise _NotPlainError
    return b"".join(after), at


def _sides(patch: bytes, at: int, old: int, new: int) -> tuple[list[bytes], list[bytes], int, int]:
    """The lines of a hunk before and after, how many at its end are context, and where it ends in the patch."""
    removed: list[bytes] = []
    added: list[bytes] = []
    trailing = 0
    while len(removed) < old or len(added) < new:
        end = patch.find(b"\n", at) + 1
        kind, line = patch[at : at + 1], patch[at + 1 : end]
        if not end or kind not in (b" ", b"-", b"+"):
            raise _NotPlainError
        at = end
        if patch.startswith(_NO_NEWLINE, at):
            line, at = line[:-1], at + len(_NO_NEWLINE)
        if kind in (b" ", b"-"):
            removed.append(line)
        if kind in (b" ", b"+"):
            added.append(line)
        trailing = trailing + 1 if kind == b" " else 0
    if len(removed) != old or len(added) != new:
        raise _NotPlainError
    return removed, added, trailing, at


class Checkout:
    """The repository of fresh sandboxes, read on the host through the layers that they are made of.

    Args:
        layers: all of them, bottom first, the image's root too; the last one has the repository.
        folder: the repository, relative to a layer.
        env: variables of the shell.
        changed: files that were changed before.
    """

    def __init__(
        self, layers: Sequence[Path], folder: str, env: Mapping[str, str], changed: Mapping[str, PlainFile]
    ) -> None:
        self._layers, self._folder, self._changed = layers, folder, changed
        self._is_plain = _git_is_plain(tuple(layers), folder, tuple(sorted(env.items())))

    def read(self, path: str) -> PlainFile | None:
        """The file at a path of the repository; None if nothing is there.

        Raises:
            LookupError: there is something that git would not read and write as it is.
        """
        names = path.split("/")
        if not self._is_plain or any("/".join(names[:depth]) in self._changed for depth in range(len(names))):
            raise LookupError(path)
        if path in self._changed:
            return self._changed[path]
        for layer in self._layers:
            for depth in range(len(names)):
                directory = layer.joinpath(self._folder, *names[:depth])
                try:
                    status = os.lstat(directory)
                except FileNotFoundError:
                    break
                except OSError as error:
                    raise LookupError(path) from error
                if not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o700 != 0o700:
                    raise LookupError(path)
                if os.path.lexists(directory / ".gitattributes"):
                    raise LookupError(path)
        place = self._layers[-1] / self._folder / path
        try:
            status = os.lstat(place)
        except OSError as error:
            if any(os.path.lexists(layer / self._folder / path) for layer in self._layers):
                raise LookupError(path) from error
            return None
        mode = stat.S_IMODE(status.st_mode)
        if not stat.S_ISREG(status.st_mode) or mode not in _MODES:
            raise LookupError(path)
        return PlainFile(place.read_bytes(), mode)


@functools.lru_cache(maxsize=256)
def _git_is_plain(layers: tuple[Path, ...], folder: str, env: tuple[tuple[str, str], ...]) -> bool:
    """Whether no configuration or attributes change what git reads and writes; layers never change."""
    variables = dict(env)
    if any(name.startswith("GIT_") and ANY_OWNER.get(name) != value for name, value in env):
        return False
    if variables.keys() & {"HOME", "XDG_CONFIG_HOME", "PREFIX"}:
        return False
    repository = layers[-1] / folder / ".git"
    try:
        if (repository / "config").read_bytes() != REPOSITORY_CONFIG.encode():
            return False
    except OSError:
        return False
    if os.path.lexists(repository / "info" / "attributes") or os.path.lexists(repository / "config.worktree"):
        return False
    programs = (posixpath.dirname(place.strip("/")) for place in variables.get("PATH", "").split(":"))
    prefixes = {"", "usr", "usr/local", *programs}
    places = [f"{prefix}/etc/{name}".strip("/") for prefix in prefixes for name in _CONFIGURATION]
    places += [f"{home}/{name}" for home in _HOMES for name in (".gitconfig", ".config/git")]
    return not any(os.path.lexists(layer / place) for layer in layers for place in places)
