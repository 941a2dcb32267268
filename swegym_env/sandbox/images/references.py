"""The name of an image, parsed: its kind, the source that Apptainer reads, and what its content depends on."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from swegym_env.errors import ImageError
from swegym_env.paths import expand

__all__ = ["Kind", "Reference", "mirrored", "parse"]

Kind = Literal["host", "directory", "sif", "recipe", "archive", "registry"]

_REGISTRIES = ("docker://", "oras://", "library://", "shub://")
_ARCHIVES = ("docker-archive:", "oci-archive:", "oci:")
_FILES = (".sif", ".def", ".tar")
_SIF_HEADER_BYTES = 64 * 1024  # the global header and the descriptors, with the image's own UUID
_HUB = "docker.io"
_LIKE_DOCKER = re.compile(r"^[a-z0-9][\w.-]*(:\d+)?(/[\w.-]+)*(:[\w.-]+)?(@sha256:[0-9a-f]{64})?$")


@dataclass(frozen=True)
class Reference:
    """An image as it was requested.

    Attributes:
        text: the name as given.
        kind: how it is turned into a directory.
        source: the path, or the source in Apptainer's syntax.
        key: everything that the content depends on, as far as it is known before reading or pulling it.
    """

    text: str
    kind: Kind
    source: str
    key: tuple[str, ...]


def parse(image: str) -> Reference:
    """Parse the name of an image. Raises ImageError where it is none."""
    if image == "host":
        return Reference(image, "host", "", ())
    if image.startswith(_REGISTRIES):
        scheme, _, name = image.partition("://")
        if not name or name != name.strip() or name.startswith(("-", "/")):
            raise ImageError(f"{image!r}: not the address of an image; expected, for example, docker://python:3.11")
        return Reference(image, "registry", image, (scheme, _whole_name(name) if scheme == "docker" else name))
    if image.startswith(_ARCHIVES):
        scheme, _, rest = image.partition(":")
        place, colon, tag = rest.partition(":")
        return _archive(image, scheme, _existing(place, image), colon + tag)
    path = _existing(image, image)
    if path.is_dir():
        if (path / "oci-layout").is_file():
            return _archive(image, "oci", path, "")
        return Reference(image, "directory", str(path), ())
    if path.suffix == ".sif" or _is_sif(path):
        return Reference(image, "sif", str(path), ("sif", _sif_fingerprint(path)))
    if path.suffix == ".def" or "dockerfile" in path.name.lower():
        return Reference(image, "recipe", str(path), ("recipe", str(path.parent), *_recipe_fingerprint(path)))
    found = _archive_kind(*_stat_fingerprint(path))
    if found is not None:
        return _archive(image, found, path, "")
    raise ImageError(
        f"{image}: not an image; expected a directory, a SIF, an OCI or Docker archive, a .def file or a Dockerfile"
    )


def mirrored(address: str, mirrors: str) -> str:
    """The address to pull instead of `address`, where `mirrors` names a mirror of its registry; for docker:// only.

    Args:
        mirrors: a prefix for images of Docker Hub ("mirror.example/hub"), or several of the form REGISTRY=PREFIX,
            with commas between ("docker.io=mirror.example/hub,ghcr.io=mirror.example/ghcr").
    """
    if not address.startswith("docker://"):
        return address
    registry, _, rest = _whole_name(address.removeprefix("docker://")).partition("/")
    for mirror in filter(None, (part.strip() for part in mirrors.split(","))):
        of, equals, prefix = mirror.rpartition("=")
        if registry == (of if equals else _HUB):
            return f"docker://{prefix.removeprefix('docker://').rstrip('/')}/{rest}"
    return address


def _whole_name(name: str) -> str:
    """`python` → `docker.io/library/python:latest`, completed as Docker does."""
    first, slash, rest = name.partition("/")
    if not slash or not ("." in first or ":" in first or first == "localhost"):
        first, rest = _HUB, name
    if first == _HUB and "/" not in rest:
        rest = f"library/{rest}"
    last = rest.rpartition("/")[2]
    return f"{first}/{rest}" if ":" in last or "@" in last else f"{first}/{rest}:latest"


def _existing(path: str, image: str) -> Path:
    found = expand(path).absolute()
    if not found.exists():
        named = _LIKE_DOCKER.match(image) and not image.startswith(".") and not image.endswith(_FILES)
        hint = f" Did you mean docker://{image}?" if named else ""
        raise ImageError(f"{image}: no such directory, image file or registry address (docker://…).{hint}")
    return found


def _archive(image: str, scheme: str, path: Path, tag: str) -> Reference:
    # The index of a layout names everything else in it by its hash.
    seen = path / "index.json" if path.is_dir() else path
    try:
        return Reference(image, "archive", f"{scheme}:{path}{tag}", (scheme, tag, *_stat_fingerprint(seen)))
    except OSError as error:
        raise ImageError(f"{image}: not an OCI layout: {seen}: {error.strerror}") from error


@functools.lru_cache(maxsize=64)
def _archive_kind(path: str, *_status: str) -> str | None:
    """Which of the two tar formats the file is in; None where it is neither. The other arguments key the cache."""
    try:
        with tarfile.open(path) as tar:
            for member in tar:
                name = member.name.removeprefix("./")
                if name == "oci-layout":
                    return "oci-archive"
                if name == "manifest.json":
                    return "docker-archive"
    except (tarfile.TarError, EOFError, OSError):
        pass
    return None


def _is_sif(path: Path) -> bool:
    with path.open("rb") as file:
        return b"SIF_MAGIC" in file.read(64)


def _sif_fingerprint(path: Path) -> str:
    """What identifies a SIF, without reading all of it."""
    with path.open("rb") as file:
        header = file.read(_SIF_HEADER_BYTES)
    return hashlib.sha256(header + str(path.stat().st_size).encode()).hexdigest()


def _stat_fingerprint(path: Path) -> tuple[str, ...]:
    status = path.stat()
    return str(path), str(status.st_size), str(status.st_mtime_ns), str(status.st_ino)


def _recipe_fingerprint(path: Path) -> tuple[str, ...]:
    """The recipe's text, and size and time of the local files that it copies (of directories, of all in them)."""
    text = path.read_text(errors="surrogateescape")
    places: list[Path] = []
    for word in _copied_paths(text):
        place = Path(os.path.join(path.parent, word))
        places += [place, *(Path(folder, name) for folder, _, names in os.walk(place) for name in sorted(names))]
    figures = []
    for place in places:
        if os.path.lexists(place):
            status = os.lstat(place)
            figures.append(f"{place} {status.st_size} {status.st_mtime_ns}")
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest(), *figures


def _copied_paths(text: str) -> list[str]:
    """The sources of a definition's `%files` or of a Dockerfile's COPY and ADD."""
    found, in_files = [], False
    for line in text.splitlines():
        words = [word for word in line.split() if not word.startswith("--")]
        if not words:
            continue
        if words[0].startswith("%"):
            in_files = words[0] == "%files"
        elif in_files:
            found.append(words[0])
        elif words[0].upper() in ("COPY", "ADD"):
            found += words[1:-1]
    return found
