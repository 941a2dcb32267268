"""Making an image's directory with Apptainer and unsquashfs: pulling (again where it may help), building, unpacking."""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import secrets
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from swegym_env.errors import ConfigurationError, ImageError
from swegym_env.sandbox.images.references import Reference, mirrored
from swegym_env.sandbox.images.tools import Report, TransientImageError, program, run_tool
from swegym_env.sandbox.layers import remove_tree

__all__ = ["PullOptions", "make_image"]

_CHANCE = random.Random()  # of its own: what a pause draws must not shift what others draw

_SIF_ALIGNMENT = 4096
_SQUASHFS_MAGIC, _SQUASHFS_VERSION = b"hsqs", (4, 0)
_LONGEST_WAIT_S = 60.0
_LACKS_CAPABILITY = "Requesting capability set"
_APPTAINER_PACKAGE = "scripts/install_apptainer.sh"


@dataclass(frozen=True)
class PullOptions:
    """How registries are asked.

    Attributes:
        retries: how often to try again where a registry is busy or the network fails; by default
            `$SWEGYM_PULL_RETRIES`, or 4.
        first_wait_s: before the first of these; each further wait is twice as long, half of it by chance.
        stall_s: give up a try for which nothing comes for so long.
        mirror: other registries to take images from, see `references.mirrored`; by default
            `$SWEGYM_REGISTRY_MIRROR`.
        no_https: speak HTTP to the registry; one on this machine itself is spoken to so anyway.
    """

    retries: int | None = None
    first_wait_s: float = 1.0
    stall_s: float = 120.0
    mirror: str | None = None
    no_https: bool = False

    def mirrors(self) -> str:
        """The mirrors that count."""
        return os.environ.get("SWEGYM_REGISTRY_MIRROR", "") if self.mirror is None else self.mirror

    def tries(self) -> int:
        """How often to try at all. Raises ConfigurationError where the variable holds no count."""
        if self.retries is not None:
            return 1 + self.retries
        text = os.environ.get("SWEGYM_PULL_RETRIES", "4")
        if not text.isdecimal():
            raise ConfigurationError(f"SWEGYM_PULL_RETRIES: expected a count, got {text!r}")
        return 1 + int(text)


def make_image(reference: Reference, target: Path, options: PullOptions, report: Report) -> None:
    """Fill the empty directory `target` with the root file system of `reference`.

    Raises:
        ImageError: it cannot be pulled, built or unpacked; one line, with the last that the tool said.
    """
    if reference.kind == "sif":
        report("unpacking")
        _unpack(Path(reference.source), target, reference.text)
    elif reference.kind == "registry":
        source = mirrored(reference.source, options.mirrors())
        _again_and_again(lambda: _build_directory(source, target, reference, options, report), options, report)
    elif reference.kind == "archive":
        _build_directory(reference.source, target, reference, options, report)
    else:
        _again_and_again(lambda: _build_recipe(target, reference, options, report), options, report)


def _again_and_again(attempt: Callable[[], None], options: PullOptions, report: Report) -> None:
    wait_s = options.first_wait_s
    tries = options.tries()
    for number in range(1, tries + 1):
        try:
            attempt()
            return
        except TransientImageError as error:
            if number == tries:
                raise ImageError(f"{error} (tried {tries} times)" if tries > 1 else str(error)) from error
            report(f"{error}; trying again in {wait_s:.0f} s")
            time.sleep(wait_s * _CHANCE.uniform(0.5, 1.0))
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)


def _build_directory(source: str, target: Path, reference: Reference, options: PullOptions, report: Report) -> None:
    """Let Apptainer pull `source`, or read an archive, straight into a directory."""
    apptainer = program("apptainer", reference.text, _APPTAINER_PACKAGE)
    command = [apptainer, "build", "--force", "--fix-perms", "--sandbox"]
    if options.no_https or _is_on_this_machine(source):
        command.append("--no-https")
    stall_s = options.stall_s if reference.kind == "registry" else None
    with _scratch(target) as scratch:
        # Into a directory within: Apptainer replaces what it is told to build.
        made = scratch / "root"
        run_tool([*command, str(made), source], reference.text, env=_places(scratch), report=report, stall_s=stall_s)
        _take_over(made, target)


def _is_on_this_machine(source: str) -> bool:
    host = source.partition("://")[2].partition("/")[0].rpartition(":")[0]
    return host in ("localhost", "127.0.0.1", "[::1]")


def _build_recipe(target: Path, reference: Reference, options: PullOptions, report: Report) -> None:
    """Build a definition file or a Dockerfile."""
    apptainer = program("apptainer", reference.text, _APPTAINER_PACKAGE)
    path = Path(reference.source)
    is_definition = path.suffix == ".def"
    text = path.read_text(errors="surrogateescape") if is_definition else _translated(path, reference.text)
    text, bases = _with_mirrors(text, options.mirrors())
    with _scratch(target) as scratch:
        definition = scratch / "image.def"
        definition.write_text(text, errors="surrogateescape")
        # An ordinary user builds as a pretended root, whose files they could not change: the way over a SIF gives them.
        made = scratch / ("root" if os.geteuid() == 0 else "image.sif")
        form = ["--sandbox"] if os.geteuid() == 0 else []
        if options.no_https or any(map(_is_on_this_machine, bases)):
            form.append("--no-https")
        command = [apptainer, "build", "--force", *form, str(made), str(definition)]
        for prefix in ([], ["unshare", "--user", "--map-root-user"]):
            try:
                run_tool([*prefix, *command], reference.text, env=_places(scratch), cwd=path.parent, report=report)
                break
            except ImageError as error:
                # A root that lacks a capability, as in many containers: in a user namespace it has them all.
                if prefix or _LACKS_CAPABILITY not in str(error) or shutil.which("unshare") is None:
                    raise
        if made.is_dir():
            _take_over(made, target)
        else:
            _unpack(made, target, reference.text)


def _with_mirrors(definition: str, mirrors: str) -> tuple[str, list[str]]:
    """A definition whose base images come from mirrors, and the addresses of these bases."""
    lines, bases, bootstrap = [], [], ""
    for line in definition.splitlines():
        word, colon, value = (part.strip() for part in line.partition(":"))
        if colon and word.lower() == "bootstrap":
            bootstrap = value.lower()
        elif colon and word.lower() == "from" and bootstrap == "docker":
            bases.append(mirrored(f"docker://{value}", mirrors))
            line = f"From: {bases[-1].removeprefix('docker://')}"
            bootstrap = ""
        lines.append(line)
    return "\n".join(lines) + "\n", bases


def _translated(path: Path, image: str) -> str:
    """A Dockerfile as a definition, by spython."""
    from spython.main.parse.parsers import DockerParser
    from spython.main.parse.writers import SingularityWriter

    try:
        return str(SingularityWriter(DockerParser(str(path)).recipe).convert())
    except SystemExit as error:  # spython's way of refusing a recipe
        raise ImageError(f"{image}: spython cannot translate this Dockerfile. Try: a .def file") from error


def _places(scratch: Path) -> dict[str, str]:
    """Let Apptainer unpack on the disk where the result will lie, unless the user told it otherwise."""
    return {} if "APPTAINER_TMPDIR" in os.environ else {"APPTAINER_TMPDIR": str(scratch)}


@contextlib.contextmanager
def _scratch(target: Path) -> Iterator[Path]:
    """A directory within `target`, on the same disk and gone with the block."""
    scratch = target / f".scratch-{secrets.token_hex(4)}"
    scratch.mkdir(mode=0o700)
    try:
        yield scratch
    finally:
        remove_tree(scratch)


def _take_over(made: Path, target: Path) -> None:
    for entry in list(made.iterdir()):
        entry.rename(target / entry.name)


def _unpack(sif: Path, target: Path, image: str) -> None:
    """Unpack the file system in a SIF into the empty directory `target`."""
    unsquashfs = program("unsquashfs", image, "apt-get install squashfs-tools")
    offset = str(_squashfs_offset(sif, image))
    # Exit code 2 tells of things that only root may write (devices, some xattrs), which a sandbox has no use for.
    options = ("-quiet", "-no-progress", "-no-xattrs", "-force", "-offset", offset, "-dest", str(target))
    run_tool([unsquashfs, *options, str(sif)], image, accepted=(0, 2))


def _squashfs_offset(sif: Path, image: str) -> int:
    """Where the squashfs partition of a SIF begins: it is aligned, and its superblock has a magic and a version."""
    if not sif.stat().st_size:
        raise ImageError(f"{image}: the file is empty")
    with sif.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for offset in range(0, len(content) - 96, _SIF_ALIGNMENT):
            version = struct.unpack_from("<HH", content, offset + 28)
            if content[offset : offset + 4] == _SQUASHFS_MAGIC and version == _SQUASHFS_VERSION:
                return offset
    raise ImageError(f"{image}: no squashfs file system in it; not a SIF, cut short, or encrypted")
