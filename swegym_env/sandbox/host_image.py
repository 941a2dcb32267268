"""The image "host": a root file system of a few links and files, with the machine's own `/usr` bound into it read-only.

Only the machine's programs and libraries are visible: no home, nothing of `/etc` but what is copied here.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from swegym_env.errors import StorageError
from swegym_env.files import make_directory
from swegym_env.paths import work_dir
from swegym_env.sandbox.identity import sandbox_user

__all__ = ["HOME", "host_binds", "host_image", "identity_files"]

HOME = "/home/agent"
_PROGRAM_DIRECTORIES = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_EMPTY = ("dev", "etc", "home", "mnt", "opt", "proc", "root", "run", "srv", "sys", "tmp", "usr", "var/tmp", "var/lib")
_COPIED = (
    "ld.so.cache",
    "alternatives",
    "ssl/certs",
    "ssl/openssl.cnf",
    "mime.types",
    "services",
    "protocols",
    "localtime",
)


def host_binds() -> dict[str, str]:
    """Host path → path inside of the directories that hold the machine's programs."""
    return dict(_host_binds(_stamp("/")))


@functools.lru_cache(maxsize=4)
def _host_binds(_root: object) -> dict[str, str]:
    """Cached while `/` is unchanged: each start of a sandbox needs it twice."""
    plain = [name for name in _PROGRAM_DIRECTORIES if Path("/", name).is_dir() and not Path("/", name).is_symlink()]
    return {f"/{name}": f"/{name}" for name in ("usr", *plain)}


# When one of these changes, the image is made again.
_SOURCES = ("/", "/etc/resolv.conf", "/etc/os-release", "/etc/ld.so.cache")


def identity_files(passwd: str = "", group: str = "") -> dict[str, str]:
    """`/etc/passwd` and `/etc/group` with the sandbox's user in them: programs find a name and a home for it."""
    uid, gid = sandbox_user()
    users = [line for line in passwd.splitlines() if line.split(":")[2:3] != [str(uid)]]
    groups = [line for line in group.splitlines() if line.split(":")[2:3] != [str(gid)]]
    if not users:
        users = ["root:x:0:0:root:/root:/bin/bash", "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin"]
        groups = ["root:x:0:", "nogroup:x:65534:"]
    users.append(f"agent:x:{uid}:{gid}:agent:{HOME}:/bin/bash")
    groups.append(f"agent:x:{gid}:")
    return {"etc/passwd": "\n".join(users) + "\n", "etc/group": "\n".join(groups) + "\n"}


def host_image() -> Path:
    """The directory of the image "host", made at first use and named by its content.

    Raises:
        StorageError: it cannot be written.
    """
    name, files, links = _host_files(sandbox_user(), tuple(map(_stamp, _SOURCES)))
    image = work_dir() / "images" / name
    if not image.exists():
        try:
            _publish(image, files, links)
        except OSError as error:
            raise StorageError(
                f"no place for the root of sandboxes in {image.parent}: {error.strerror or error}. "
                "Try: another $SWEGYM_WORKDIR"
            ) from error
    return image


@functools.lru_cache(maxsize=4)
def _host_files(user: tuple[int, int], sources: tuple[object, ...]) -> tuple[str, dict[str, str], dict[str, str]]:
    """The image's name, files and links, cached while `sources` are unchanged: each start of a sandbox needs them."""
    files = identity_files() | {
        "etc/hosts": "127.0.0.1\tlocalhost sandbox\n::1\tlocalhost\n",
        "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
        "etc/resolv.conf": _text("/etc/resolv.conf"),
        "etc/os-release": _text("/etc/os-release"),
    }
    links = {name: os.readlink(f"/{name}") for name in _PROGRAM_DIRECTORIES if Path("/", name).is_symlink()} | {
        "var/run": "../run"
    }
    cache = Path("/etc/ld.so.cache")
    changed = cache.stat().st_mtime_ns if cache.exists() else 0
    key = hashlib.sha256(repr((2, sorted(files.items()), sorted(links.items()), changed)).encode()).hexdigest()[:16]
    return f"host-{key}", files, links


def _stamp(path: str) -> tuple[int, int, int] | None:
    """A value that changes when the file does."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _publish(image: Path, files: dict[str, str], links: dict[str, str]) -> None:
    """Write the tree to a temporary directory and rename it; if another process was first, its tree stays."""
    make_directory(image.parent)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{image.name}-", dir=image.parent))
    try:
        unfinished.chmod(0o755)
        for name in _EMPTY:
            make_directory(unfinished / name)
        for name in ("tmp", "var/tmp"):
            (unfinished / name).chmod(0o1777)
        for name, target in links.items():
            (unfinished / name).symlink_to(target)
        java = (path.name for path in Path("/etc").glob("java-*"))  # Debian's Java does not start without it
        for name in (*_COPIED, *java):
            _copy(Path("/etc", name), unfinished / "etc" / name)
        for name, text in files.items():
            (unfinished / name).write_text(text)
            (unfinished / name).chmod(0o644)
        unfinished.rename(image)
    except OSError:
        if not image.exists():
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _copy(source: Path, target: Path) -> None:
    make_directory(target.parent)
    if source.name == "certs":
        # Only the bundle: the rest of the directory is hundreds of links into /usr/share.
        source, target = source / "ca-certificates.crt", target / "ca-certificates.crt"
        make_directory(target.parent)
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, ignore=_unreadable)
    elif source.is_file():
        shutil.copy(source, target)


def _unreadable(directory: str, names: list[str]) -> list[str]:
    return [name for name in names if not os.access(os.path.join(directory, name), os.R_OK)]
