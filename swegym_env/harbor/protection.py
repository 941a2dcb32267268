"""Removes changes from an agent's final state that could affect every program, before the tests grade it.

Programs and libraries of the image that the agent replaced, removed or hid are restored. Files that shells, Python and
the dynamic linker load before any test are removed. Python finds what `pip install -e` installed by `.pth` files: their
directories are kept, but not their statements, which Python would run when it starts. A finder that setuptools wrote is
replaced by the directory that it leads to.
"""

from __future__ import annotations

import fnmatch
import os
import posixpath
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from swegym_env.harbor.image import Built
from swegym_env.sandbox.changes import is_whiteout
from swegym_env.sandbox.layers import unmark_opaque
from swegym_env.sandbox.linux.files import remove_tree

__all__ = ["protect_image", "remove_owners"]

_OF_THE_OWNER = ("tests", "logs", "solution", ".swegym")
_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "usr/local")
# Read by every dynamic program, shell or Python, before the tests or while they begin.
_LOADED = (
    "etc/ld.so.preload", "etc/ld.so.conf", "etc/ld.so.conf.d/*", "etc/profile", "etc/profile.d/*", "etc/bash.bashrc",
    "etc/environment", "etc/pip.conf", "*/sitecustomize.*", "*/usercustomize.*", "*/sitecustomize/*",
    "*/usercustomize/*", "*/apport_python_hook.*", "*/apport_python_hook/*", "usr/*/python3[0-9]*.zip",
    "lib/python3[0-9]*.zip", "usr/pyvenv.cfg", "usr/bin/pyvenv.cfg", "usr/local/pyvenv.cfg", "usr/local/bin/pyvenv.cfg",
    "bin/pyvenv.cfg", "pyvenv.cfg", "root/.bash*", "root/.profile", "root/.config/pip/*", "root/.pip/*",
    "home/agent/.bash*", "home/agent/.profile", "root/.config/uv/*", "root/.pydistutils.cfg",
)  # fmt: skip
_PROGRAM_DIRECTORIES = ("usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin")
_SITES = ("site-packages", "dist-packages")
_OF_PYTHON = re.compile(r"(?:^|/)python3[^/]*(?:/|$)")
_IMPORTED = (".py", ".pyc", ".so")
_MOST_LINKS = 40
_MOST_BYTES = 1 << 16
# Of a path file, and of the module that it imports: what setuptools writes.
_FINDER = re.compile(r"import (__editable___\w+_finder); ?\1\.install\(\)")
_MAPPING = re.compile(r"MAPPING(?:: dict\[str, str\])? = \{((?:'[\w.]+': '/[^'\\]*'(?:, )?)*)\}", re.ASCII)
_MAPPED = re.compile(r"'([\w.]+)': '(/[^'\\]*)'", re.ASCII)


def remove_owners(layers: Sequence[Path]) -> None:
    """Remove from copied layers what belongs to the owner in a sandbox: tests, logs and solution."""
    for layer in layers:
        for name in _OF_THE_OWNER:
            remove_tree(layer / name)


def protect_image(layers: Sequence[Path], built: Built) -> tuple[str, ...]:
    """Remove from copied layers what changes the image's programs, or is loaded before the tests; the removed paths."""
    below = (built.root, *built.layers)
    image = _Image(
        below,
        (*below, *layers),
        frozenset({*_SYSTEM, *(_resolved(below, place) for place in _SYSTEM)}),
        frozenset({*_PROGRAM_DIRECTORIES, *(_resolved(below, place) for place in _PROGRAM_DIRECTORIES)}),
    )
    return tuple(sorted({path for layer in layers for path in _filtered(layer, "", image)}))


@dataclass(frozen=True)
class _Image:
    """What is below the layers of an episode.

    Attributes:
        below: the layers of the image, bottom first.
        whole: these, and the layers of the episode over them.
        system: directories of programs and libraries, as usual names and as the image's links resolve them.
        programs: directories in which programs are found, likewise.
        modules: directory → names of the modules of Python in it, as far as they were asked for.
    """

    below: Sequence[Path]
    whole: Sequence[Path]
    system: frozenset[str]
    programs: frozenset[str]
    modules: dict[str, frozenset[str]] = field(default_factory=dict)

    def has_module(self, directory: str, name: str) -> bool:
        """Whether Python finds a module of the image in a directory where a new file or directory may hide it."""
        stem, _, suffix = name.partition(".")
        if not _OF_PYTHON.search(directory) or (suffix and not name.endswith(_IMPORTED)):
            return False
        if directory not in self.modules:
            places = (layer / directory for layer in self.below)
            found = {entry for place in places if place.is_dir() for entry in os.listdir(place)}
            self.modules[directory] = frozenset(each.partition(".")[0] for each in found if each.endswith(_IMPORTED))
        return stem in self.modules[directory]


def _resolved(below: Sequence[Path], path: str) -> str:
    """A path of the image with its links resolved inside the image; "" for its root."""
    ahead, found, links = path.split("/")[::-1], list[str](), 0
    while ahead:
        name = ahead.pop()
        if name == "..":
            found = found[:-1]
        elif name not in ("", "."):
            place = "/".join((*found, name))
            top = _top(below, place)
            if top is None or not top.is_symlink() or links == _MOST_LINKS:
                found.append(name)
                continue
            links += 1
            target = os.readlink(top)
            found = [] if target.startswith("/") else found
            ahead += target.split("/")[::-1]
    return "/".join(found)


def _filtered(layer: Path, directory: str, image: _Image) -> Iterator[str]:
    """Remove what changes the system from a directory of a layer; yields the paths that were removed."""
    below = image.below
    with os.scandir(layer / directory) as entries:
        names = sorted(entry.name for entry in entries)
    for name in names:
        path = f"{directory}/{name}" if directory else name
        status = os.lstat(layer / path)
        system = any(path == place or path.startswith(f"{place}/") for place in image.system)
        leads_there = any(place.startswith(f"{path}/") for place in image.system)
        if stat.S_ISDIR(status.st_mode):
            hides = _is_file(below, path)
            if system or leads_there:
                hides = unmark_opaque(layer / path) or hides
            hides = hides and (system or leads_there) and _is_file(below, path)
            if hides or (system and not _exists(below, path) and image.has_module(directory, name)):
                remove_tree(layer / path)
                yield path
            else:
                yield from _filtered(layer, path, image)
        elif (
            ((system or leads_there) and (_exists(below, path) or is_whiteout(status)))
            or any(fnmatch.fnmatchcase(path, pattern) for pattern in _LOADED)
            or (os.path.dirname(path) in image.programs and _shadows(image, name))
            or (system and image.has_module(directory, name))
            or (name in _SITES and stat.S_ISLNK(status.st_mode))  # Python reads the path files behind it
        ):
            os.unlink(layer / path)
            yield path
        elif system and os.path.basename(directory) == "__pycache__":
            if image.has_module(os.path.dirname(directory), name):
                os.unlink(layer / path)  # the image's modules are compiled again
        elif name.endswith(".pth") and os.path.basename(directory) in _SITES:
            text = _text_of(layer / path)
            kept = [found for line in text.splitlines() if (found := _directory_of(line, layer, directory, image))]
            os.unlink(layer / path)  # not written in place: it may be a link
            if kept:
                (layer / path).write_text("".join(f"{each}\n" for each in kept), encoding="ascii")
            if not kept or len(kept) < len(text.splitlines()):
                yield path


def _directory_of(line: str, layer: Path, site: str, image: _Image) -> str:
    """The directory that a line of a path file in `site` adds to Python's path; "" if it does something else."""
    if finder := _FINDER.fullmatch(line.strip()):
        return _mapped_directory(_text_of(layer / site / f"{finder[1]}.py"), image)
    # Python looks into an archive too, and reads some characters as the end of a line, some as none, by its version.
    place = posixpath.normpath(posixpath.join("/", site, line.strip()))
    printable = line.isascii() and line.isprintable()
    return place if printable and not line.startswith("import") and _is_directory(image.whole, place) else ""


def _mapped_directory(finder: str, image: _Image) -> str:
    """The directory in which packages lie as a finder of setuptools maps them; "" where no single one has all."""
    mapping = next((found[1] for line in finder.splitlines() if (found := _MAPPING.fullmatch(line))), "")
    places = set[str]()
    for name, target in _MAPPED.findall(mapping):
        tail = "/" + name.replace(".", "/")
        places.add(target.removesuffix(tail) or "/" if target.endswith(tail) else "")
    place = places.pop() if len(places) == 1 else ""
    return place if place.isascii() and place.isprintable() and _is_directory(image.whole, place) else ""


def _text_of(path: Path) -> str:
    """The text of a short file; "" for any other, and for a link."""
    status = path.lstat() if os.path.lexists(path) else None
    if status is None or not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_BYTES:
        return ""
    return path.read_bytes().decode("utf-8", "replace")


def _is_directory(layers: Sequence[Path], path: str) -> bool:
    """Whether a path is a directory, after links, where these layers lie over each other."""
    if not path:
        return False
    top = _top(layers, _resolved(layers, path))
    return top is not None and stat.S_ISDIR(os.lstat(top).st_mode)


def _top(layers: Sequence[Path], path: str) -> Path | None:
    """The file, directory or link that is seen at a path where these layers lie over each other; None without one."""
    return next((layer / path for layer in reversed(layers) if os.path.lexists(layer / path)), None)


def _exists(below: Sequence[Path], path: str) -> bool:
    return _top(below, path) is not None


def _is_file(below: Sequence[Path], path: str) -> bool:
    """Whether the image has something at a path that is not a directory."""
    top = _top(below, path)
    return top is not None and not stat.S_ISDIR(os.lstat(top).st_mode)


def _shadows(image: _Image, name: str) -> bool:
    """Whether the image has a program of this name."""
    return any(_exists(image.below, f"{place}/{name}") for place in image.programs)
