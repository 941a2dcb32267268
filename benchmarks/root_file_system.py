"""A minimal root file system with this machine's programs, for the peers of a benchmark and for tests of images."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

__all__ = ["make_root", "write_files"]


def make_root(directory: Path, programs: Iterable[str], *, more: Iterable[str] = ()) -> None:
    """Create a root file system with some programs and the libraries that they need.

    Args:
        directory: the root.
        programs: names in this machine's /usr/bin or /bin.
        more: additional directories, besides the mount points of a sandbox.
    """
    for name in ("bin", "etc", "proc", "dev", "tmp", "home", "var/tmp", "testbed", *more):
        (directory / name).mkdir(parents=True, exist_ok=True)
    (directory / "usr").symlink_to(".")
    for name in programs:
        program = shutil.which(name, path="/usr/bin:/bin")
        assert program is not None
        shutil.copy(program, directory / "bin" / name)
        for word in subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout.split():
            if word.startswith("/"):
                (directory / word[1:]).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(word, directory / word[1:])
    for name in ("passwd", "group", "hosts", "resolv.conf"):
        (directory / "etc" / name).touch()


def write_files(files: Mapping[str, str], directory: Path) -> None:
    """Write a small repository: path → text."""
    for path, text in files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(text, encoding="utf-8")
