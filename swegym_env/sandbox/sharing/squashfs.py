"""Layers as squashfs files: packed by `mksquashfs`, checked and unpacked by this module.

An archive of unknown origin must be known entirely before its first file is written. `unsquashfs` lists names with line
breaks ambiguously, and makes no whiteouts for an ordinary user. So the file's tables are read here (format 4.0, see
https://dr-emann.github.io/squashfs/). Everything that no layer has is refused. Only then are files written, relative
to descriptors of directories that were just made: no path and no link is ever followed.

Owners and extended attributes do not travel: files get the owner of sandboxes, and a manifest lists the opaque
directories.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import stat
import struct
import subprocess
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from swegym_env.errors import LayerError
from swegym_env.sandbox.identity import sandbox_user

__all__ = ["Tree", "pack", "packer_version", "read_tree", "unpack"]

_MOST_ENTRIES = 4_000_000
_MOST_BYTES = 64 << 30
_MOST_LEVELS = 200
_SUPERBLOCK = struct.Struct("<5I6H8Q")
_MAGIC, _GZIP = 0x73717368, 1
_NONE32, _NONE64 = 0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF
_NO_XATTRS = b"\xff\xff\xff\xff"
_LONGEST_PATH = 4096
_METADATA_BYTES = 8192
_STORED = 1 << 24  # in the size of a data block: it is not compressed
_KINDS = {1: stat.S_IFDIR, 2: stat.S_IFREG, 3: stat.S_IFLNK, 4: stat.S_IFBLK, 5: stat.S_IFCHR}  # others are refused
_EXTENDED = 7  # added to the kind of an inode with more fields
_INSTALL = "apt-get install squashfs-tools, version 4.4 or later"


@dataclass(slots=True)
class _Entry:
    """A file, link, whiteout or directory of an archive.

    Attributes:
        mode: type and permissions.
        mtime: seconds since the epoch.
        target: of a link.
        size_bytes: of a file; its data are `blocks` from `start` on, and the rest in a fragment: number and offset.
        children: name → entry of a directory.
    """

    mode: int
    mtime: int
    target: bytes = b""
    size_bytes: int = 0
    start: int = 0
    blocks: tuple[int, ...] = ()
    fragment: tuple[int, int] | None = None
    children: dict[bytes, _Entry] = field(default_factory=dict)


@dataclass(frozen=True)
class Tree:
    """What a packed layer holds; all of it has been checked.

    Attributes:
        root: the topmost directory.
        entries: number of names.
        size_bytes: of all files, unpacked.
    """

    root: _Entry
    entries: int
    size_bytes: int

    def kind_of(self, path: str) -> int:
        """The type of `path`, relative to the root, as in a mode (`stat.S_IFDIR`, …); 0 if there is no such name."""
        entry: _Entry | None = self.root
        try:
            parts = os.fsencode(path).split(b"/")
        except UnicodeEncodeError:  # a lone surrogate, which is in no name
            return 0
        for part in parts:
            entry = entry.children.get(part) if entry is not None else None
        return 0 if entry is None else stat.S_IFMT(entry.mode)


def packer_version() -> str:
    """The version of `mksquashfs`, such as "4.5.1". Raises LayerError: it is not installed."""
    if shutil.which("mksquashfs") is None:
        raise LayerError(f"layers cannot be packed: no mksquashfs on PATH. Try: {_INSTALL}")
    done = subprocess.run(["mksquashfs", "-version"], capture_output=True, text=True, check=False)
    found = re.search(r"version (\d[\w.]*)", done.stdout + done.stderr)
    return found[1] if found else "unknown"


def pack(directory: Path, image: Path) -> None:
    """Write the content of `directory` to the squashfs file `image`; equal directories give equal bytes.

    The bytes depend on names, permissions, times of change in seconds and content, and on the version of `mksquashfs`.

    Raises:
        LayerError: `mksquashfs` is not installed, too old, or failed.
    """
    packer_version()
    plain = ("-noappend", "-no-progress", "-no-xattrs", "-no-exports", "-no-hardlinks", "-all-root", "-mkfs-time", "0")
    strict = ("-exit-on-error",)  # otherwise a file that cannot be read is packed as an empty one
    compressed = ("-comp", "gzip", "-Xcompression-level", "6", "-b", "131072")
    done = subprocess.run(
        ["mksquashfs", str(directory), str(image), *plain, *strict, *compressed],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env={name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"},  # excludes -mkfs-time
        check=False,
    )
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
        raise LayerError(f"{directory}: mksquashfs cannot pack it: {lines[-1]}. Try: {_INSTALL}")


def read_tree(image: Path) -> Tree:
    """Read and check all names of a squashfs file; nothing is written.

    Raises:
        LayerError: it is no whole squashfs file of version 4.0 compressed by gzip, or holds what no layer has: devices
            other than whiteouts, pipes, sockets, set-uid and set-gid files, extended attributes, names that lead
            elsewhere, a name twice in a directory, a directory with two parents, more than 4,000,000 names, 200 levels
            or 64 GiB.
        OSError: it cannot be read.
    """
    with _Archive(image) as archive:
        return archive.tree()


def unpack(image: Path, tree: Tree, target: Path) -> None:
    """Write the files of `image` into the empty directory `target`, for the sandbox's user.

    Args:
        tree: from `read_tree`.
    Raises:
        LayerError: a file's data are damaged.
        OSError: something cannot be read or written. What was written stays.
    """
    with _Archive(image) as archive:
        descriptor = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            archive.write(tree.root, descriptor)
        finally:
            os.close(descriptor)


class _Archive:
    """An open squashfs file. Every way in which its bytes can be wrong is a LayerError."""

    def __init__(self, image: Path) -> None:
        self._name = image.name
        self._file: BinaryIO = image.open("rb")
        self._length = os.fstat(self._file.fileno()).st_size
        self._metadata = functools.lru_cache(maxsize=64)(self._read_metadata)
        self._fragment_block = functools.lru_cache(maxsize=16)(self._read_fragment_block)
        self._owner = sandbox_user() if os.geteuid() == 0 else None
        self._seen: set[int] = set()  # directories, by the number of their inode
        self._entries = self._bytes = 0

    def __enter__(self) -> _Archive:
        try:
            fields = _SUPERBLOCK.unpack(self._read(0, _SUPERBLOCK.size))
            magic, _, _, self._block_bytes, self._fragment_count = fields[:5]
            compressor, block_log, _, _, major, minor = fields[5:11]
            self._root, used, _, xattrs, self._inodes, self._directories, self._fragments, _ = fields[11:]
            if (magic, major, minor) != (_MAGIC, 4, 0):
                raise self._refused("no squashfs file of version 4.0")
            if compressor != _GZIP:
                raise self._refused(f"compressed by method {compressor}, expected gzip ({_GZIP})")
            if not 12 <= block_log <= 20 or self._block_bytes != 1 << block_log or used > self._length:
                raise self._refused("its superblock is damaged, or its end is missing")
            if xattrs != _NONE64:
                raise self._refused("it has extended attributes")
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _refused(self, why: str, path: bytes = b"") -> LayerError:
        place = f": {os.fsdecode(path)!r}" if path else ""
        return LayerError(f"{self._name} is refused{place}: {why}")

    # Reading

    def _read(self, start: int, size: int) -> bytes:
        data = os.pread(self._file.fileno(), size, start) if start + size <= self._length else b""
        if len(data) != size:
            raise self._refused(f"{size} bytes at {start} lie outside of it")
        return data

    def _inflated(self, data: bytes, most: int) -> bytes:
        """Decompress at most `most` bytes."""
        try:
            decompressor = zlib.decompressobj()
            plain = decompressor.decompress(data, most)
        except zlib.error as error:
            raise self._refused(f"a block is damaged: {error}") from error
        if decompressor.unconsumed_tail or not decompressor.eof:
            raise self._refused(f"a block holds more than {most} bytes, or its end is missing")
        return plain

    def _read_metadata(self, start: int) -> tuple[bytes, int]:
        """The metadata block at `start`, and where the next one begins."""
        (header,) = struct.unpack("<H", self._read(start, 2))
        size = header & 0x7FFF
        data = self._read(start + 2, size)
        return (data if header & 0x8000 else self._inflated(data, _METADATA_BYTES)), start + 2 + size

    def _metadata_from(self, start: int, offset: int) -> Callable[[int], bytes]:
        """A function that reads on from `offset` in the metadata block at `start`."""
        block, following = self._metadata(start)
        rest = block[offset:]

        def read(size: int) -> bytes:
            nonlocal rest, following
            while len(rest) < size:
                more, following = self._metadata(following)
                if not more:
                    raise self._refused("an empty block of metadata")
                rest += more
            found, rest = rest[:size], rest[size:]
            return found

        return read

    def tree(self) -> Tree:
        """See `read_tree`."""
        root = self._inode(self._root, b"", 0)
        if not stat.S_ISDIR(root.mode):
            raise self._refused("its root is no directory")
        return Tree(root, self._entries, self._bytes)

    def _inode(self, reference: int, path: bytes, level: int) -> _Entry:
        """The entry that an inode describes, with everything below it."""
        read = self._metadata_from(self._inodes + (reference >> 16), reference & 0xFFFF)
        kind, permissions, _, _, mtime, number = struct.unpack("<4HII", read(16))
        extended = kind > _EXTENDED
        kind = kind - _EXTENDED if extended else kind
        if kind not in _KINDS:
            raise self._refused("a pipe, a socket or an unknown kind of file", path)
        entry = _Entry(_KINDS[kind] | permissions & 0o7777, mtime)
        self._entries += 1
        if entry.mode & (stat.S_ISUID | stat.S_ISGID):
            raise self._refused(f"set-uid or set-gid (mode {stat.S_IMODE(entry.mode):04o})", path)
        if stat.S_ISREG(entry.mode):
            xattrs = self._read_file(entry, read, extended, path)
        elif stat.S_ISDIR(entry.mode):
            if number in self._seen:
                raise self._refused("a directory with two parents", path)
            self._seen.add(number)
            xattrs = self._read_directory(entry, read, extended, path, level)
        elif stat.S_ISLNK(entry.mode):
            (size,) = struct.unpack("<4xI", read(8))
            entry.target = read(size) if size < _LONGEST_PATH else b""
            if not entry.target or b"\0" in entry.target:
                raise self._refused("a link that leads nowhere", path)
            xattrs = read(4) if extended else _NO_XATTRS
        else:
            (device,) = struct.unpack("<4xI", read(8))
            if not stat.S_ISCHR(entry.mode) or device:
                raise self._refused("a device", path)
            xattrs = read(4) if extended else _NO_XATTRS
        if xattrs != _NO_XATTRS:
            raise self._refused("extended attributes", path)
        return entry

    def _read_file(self, entry: _Entry, read: Callable[[int], bytes], extended: bool, path: bytes) -> bytes:
        """Read where a file's data are; returns the number of its extended attributes."""
        xattrs = _NO_XATTRS
        if extended:
            entry.start, size, fragment, offset, xattrs = struct.unpack("<QQ12xII4s", read(40))
        else:
            entry.start, fragment, offset, size = struct.unpack("<4I", read(16))
        entry.size_bytes = size
        self._bytes += size
        if self._bytes > _MOST_BYTES:
            raise self._refused(f"more than {_MOST_BYTES >> 30} GiB of files", path)
        if fragment != _NONE32:
            entry.fragment = fragment, offset
        count = size // self._block_bytes if entry.fragment else -(-size // self._block_bytes)
        entry.blocks = struct.unpack(f"<{count}I", read(4 * count))
        return xattrs

    def _read_directory(
        self, entry: _Entry, read: Callable[[int], bytes], extended: bool, path: bytes, level: int
    ) -> bytes:
        """Read all that is below a directory; returns the number of its extended attributes."""
        xattrs = _NO_XATTRS
        if extended:
            size, block, offset, xattrs = struct.unpack("<4xII4x2xH4s", read(24))
        else:
            block, size, offset = struct.unpack("<I4xHH4x", read(16))
        if level == _MOST_LEVELS:
            raise self._refused(f"more than {_MOST_LEVELS} levels of directories", path)
        for name, inode in self._listed(block, offset, size - 3, path):
            below = path + b"/" + name if path else name
            if name in entry.children:
                raise self._refused("twice in its directory", below)
            if self._entries >= _MOST_ENTRIES:
                raise self._refused(f"more than {_MOST_ENTRIES} names", below)
            entry.children[name] = self._inode(inode, below, level + 1)
        return xattrs

    def _listed(self, block: int, offset: int, size: int, path: bytes) -> Iterator[tuple[bytes, int]]:
        """Name and inode of each entry of a directory, whose list has `size` bytes."""
        read = self._metadata_from(self._directories + block, offset) if size > 0 else None
        while read is not None and size > 0:
            count, start, _ = struct.unpack("<3I", read(12))
            size -= 12
            for _ in range(count + 1):
                place, _, _, length = struct.unpack("<HhHH", read(8))
                name = read(length + 1)
                size -= 8 + len(name)
                if size < 0:
                    raise self._refused("a list of names is damaged", path)
                if name in (b".", b"..") or b"/" in name or b"\0" in name or len(name) > 255:
                    raise self._refused(f"the name {os.fsdecode(name)!r} leads elsewhere", path)
                yield name, start << 16 | place

    # Writing

    def write(self, directory: _Entry, place: int) -> None:
        """Write the children of `directory` into the open directory `place`, then set its mode and time."""
        for name, entry in directory.children.items():
            if stat.S_ISDIR(entry.mode):
                os.mkdir(name, 0o700, dir_fd=place)
                below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=place)
                try:
                    self.write(entry, below)
                finally:
                    os.close(below)
                continue
            if stat.S_ISREG(entry.mode):
                descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=place)
                with open(descriptor, "wb") as file:
                    file.writelines(self._data(entry))
                    file.flush()
                    self._finish(entry, descriptor)
                continue
            if stat.S_ISLNK(entry.mode):
                os.symlink(entry.target, name, dir_fd=place)
            else:
                os.mknod(name, stat.S_IFCHR, 0, dir_fd=place)  # a whiteout, which anybody may make
            if self._owner is not None:
                os.chown(name, *self._owner, dir_fd=place, follow_symlinks=False)
            os.utime(name, (entry.mtime, entry.mtime), dir_fd=place, follow_symlinks=False)
        self._finish(directory, place)

    def _finish(self, entry: _Entry, descriptor: int) -> None:
        if self._owner is not None:
            os.fchown(descriptor, *self._owner)
        os.fchmod(descriptor, stat.S_IMODE(entry.mode))
        os.utime(descriptor, (entry.mtime, entry.mtime))

    def _data(self, entry: _Entry) -> Iterator[bytes]:
        start, left = entry.start, entry.size_bytes
        for size in entry.blocks:
            expected = min(left, self._block_bytes)
            data = self._block(start, size, expected) if size else bytes(expected)  # of size 0: a hole
            if len(data) != expected:
                raise self._refused(f"a block of {len(data)} bytes, expected {expected}")
            yield data
            start += size & (_STORED - 1)
            left -= expected
        if entry.fragment is not None and left:
            number, offset = entry.fragment
            data = self._fragment_block(number)[offset : offset + left]
            if len(data) != left:
                raise self._refused(f"the end of a file has {len(data)} bytes, expected {left}")
            yield data

    def _block(self, start: int, size: int, most: int) -> bytes:
        data = self._read(start, size & (_STORED - 1))
        return data if size & _STORED else self._inflated(data, most)

    def _read_fragment_block(self, number: int) -> bytes:
        if number >= self._fragment_count:
            raise self._refused(f"fragment {number} of {self._fragment_count}")
        (block,) = struct.unpack("<Q", self._read(self._fragments + number // 512 * 8, 8))
        start, size, _ = struct.unpack("<QII", self._metadata_from(block, number % 512 * 16)(16))
        return self._block(start, size, self._block_bytes)
