"""Writes git objects and small repositories without running git: loose objects, an index that needs no refresh.

Training makes thousands of tiny tasks; `git init`, `git add` and `git commit` would cost each of them about 15 ms of
processes, this costs about 1 ms. Formats: gitformat-index(5), git-hash-object(1); tests compare the result with git's.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

from swegym_env.files import make_directory

__all__ = ["COMMIT_TIME_S", "GITLINK", "REPOSITORY_CONFIG", "Blob", "ObjectWriter", "write_repository"]

Blob = tuple[int, bytes]
"""A file of a commit: mode (0o100644, 0o100755 or 0o120000) and content; of a nested repository GITLINK and its id."""

GITLINK = 0o160000

COMMIT_TIME_S = 1577836800  # 2020-01-01, also the files' time: any later edit changes a file's stat data

# An overlay shows other inode, device and change-time figures than the layer below it, and a user namespace other
# owners. Only size and modification time survive: git compares those, and the first `git status` reads no file.
REPOSITORY_CONFIG = """\
[core]
\trepositoryformatversion = 0
\tfilemode = true
\tbare = false
\tcheckStat = minimal
\ttrustctime = false
[gc]
\tauto = 0
[user]
\tname = agent
\temail = agent@localhost
"""

_IDENTITY = f"swegym <swegym@localhost> {COMMIT_TIME_S} +0000"


class ObjectWriter:
    """Writes loose objects into an object directory; ids are lower-case hex."""

    def __init__(self, objects: Path) -> None:
        """Write under `objects`, which exists."""
        self._objects = str(objects)

    def write(self, kind: str, content: bytes) -> str:
        """Store one object ("blob", "tree" or "commit") and return its id."""
        data = b"%s %d\0%s" % (kind.encode(), len(content), content)
        oid = hashlib.sha1(data, usedforsecurity=False).hexdigest()
        directory = f"{self._objects}/{oid[:2]}"
        path = f"{directory}/{oid[2:]}"
        if not os.path.exists(path):
            make_directory(directory)
            unfinished = f"{path}.{os.getpid()}"  # a process that dies here leaves no partial object under the id
            with open(unfinished, "wb") as file:
                file.write(zlib.compress(data, 1))
            os.chmod(unfinished, 0o444)
            os.replace(unfinished, path)
        return oid

    def write_tree(self, blobs: Mapping[str, tuple[int, str]]) -> str:
        """Store the tree objects of `blobs` (path → mode, blob id) and return the root's id."""
        # Directory → its entries by name; "" is the root. The deepest are written first: their parents hold their ids.
        trees: dict[str, dict[str, tuple[int, str]]] = {"": {}}
        for path, entry in blobs.items():
            directory, _, name = path.rpartition("/")
            above = directory
            while above not in trees:
                trees[above] = {}
                above = above.rpartition("/")[0]
            trees[directory][name] = entry
        ids: dict[str, str] = {}
        for directory in sorted(trees, key=lambda place: (-place.count("/"), place == "")):
            # Git orders a directory as if its name ended with a slash.
            ordered = sorted(
                trees[directory].items(), key=lambda item: os.fsencode(item[0]) + b"/" * (item[1][0] == 0o40000)
            )
            ids[directory] = self.write(
                "tree",
                b"".join(b"%o %s\0%s" % (mode, os.fsencode(name), bytes.fromhex(oid)) for name, (mode, oid) in ordered),
            )
            if directory:
                parent, _, name = directory.rpartition("/")
                trees[parent][name] = (0o40000, ids[directory])
        return ids[""]

    def write_commit(self, tree: str, message: str = "Initial commit") -> str:
        """Store a commit of `tree` without a parent, with a fixed author and time, and return its id."""
        body = f"tree {tree}\nauthor {_IDENTITY}\ncommitter {_IDENTITY}\n\n{message}\n"
        return self.write("commit", body.encode())


def write_repository(
    root: Path, files: Mapping[str, str], message: str = "Initial commit", *, owner: tuple[int, int] | None = None
) -> str:
    """Write `files` under `root` and commit them on branch `main`; equal files give the equal commit everywhere.

    Args:
        root: an existing empty directory, which becomes the work tree.
        files: path relative to `root` → text, written as UTF-8 with its line ends unchanged. Text that starts with
            `#!` is executable.
        message: the commit message.
        owner: user and group of everything written; None: the caller's own.
    Returns:
        The id of the commit.
    """
    git = root / ".git"
    for name in ("", "objects", "refs", "refs/heads", "refs/tags", "info", "objects/info"):
        make_directory(git / name)
    objects = ObjectWriter(git / "objects")
    blobs: dict[str, tuple[int, str]] = {}
    for path, text in files.items():
        content = text.encode("utf-8", "surrogateescape")
        mode = 0o755 if content.startswith(b"#!") else 0o644
        target = os.path.join(root, path)
        make_directory(os.path.dirname(target))
        with open(target, "wb") as file:
            file.write(content)
        os.chmod(target, mode)
        os.utime(target, (COMMIT_TIME_S, COMMIT_TIME_S))
        blobs[path] = (stat.S_IFREG | mode, objects.write("blob", content))
    commit = objects.write_commit(objects.write_tree(blobs), message)
    contents = {"HEAD": "ref: refs/heads/main\n", "config": REPOSITORY_CONFIG, "refs/heads/main": f"{commit}\n"}
    for name, text in contents.items():
        (git / name).write_text(text)
        (git / name).chmod(0o644)
    if owner is not None:
        for directory, names, entries in os.walk(root):
            for name in (*names, *entries):
                os.chown(os.path.join(directory, name), *owner, follow_symlinks=False)
    (git / "index").write_bytes(_index(root, blobs))  # after chown: it holds the owner and the change time
    (git / "index").chmod(0o644)
    if owner is not None:
        os.chown(git / "index", *owner)
    return commit


def _index(root: Path, blobs: Mapping[str, tuple[int, str]]) -> bytes:
    """A git index, version 2, with the stat data that the files under `root` have now."""
    entries = [b"DIRC", struct.pack(">II", 2, len(blobs))]
    for path, (mode, oid) in sorted(blobs.items(), key=lambda item: os.fsencode(item[0])):
        status = os.lstat(root / path)
        name = os.fsencode(path)
        fixed = struct.pack(
            ">10I20sH",
            int(status.st_ctime),
            status.st_ctime_ns % 1_000_000_000,
            int(status.st_mtime),
            status.st_mtime_ns % 1_000_000_000,
            status.st_dev & 0xFFFFFFFF,
            status.st_ino & 0xFFFFFFFF,
            mode,
            status.st_uid,
            status.st_gid,
            status.st_size & 0xFFFFFFFF,
            bytes.fromhex(oid),
            min(len(name), 0xFFF),
        )
        entry = fixed + name
        entries.append(entry + b"\0" * (8 - len(entry) % 8))
    data = b"".join(entries)
    return data + hashlib.sha1(data, usedforsecurity=False).digest()
