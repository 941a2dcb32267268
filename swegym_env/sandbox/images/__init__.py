"""From the name of an image to a directory that can be mounted: a root file system, made once, named by its content.

    host                                the machine's own programs, read-only (`host_image`)
    /path/to/directory                  as it is
    /path/to/image.sif                  unpacked
    /path/to/image.def, a Dockerfile    built by Apptainer; a Dockerfile is first translated to a definition
    /path/to/archive.tar, an OCI layout, docker-archive:, oci-archive:, oci:   unpacked by Apptainer
    docker://, oras://, library://      pulled by Apptainer, from a mirror if one is configured

A directory needs no FUSE to be mounted and starts faster than a SIF. Everything in it belongs to the sandbox's user:
the agent may change, on its own writable layer, what would be root's in a container.

`references` parses names, `building` makes directories of them, `store` hashes and keeps them.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from swegym_env.paths import work_dir
from swegym_env.sandbox.host_image import host_image, identity_files
from swegym_env.sandbox.identity import own
from swegym_env.sandbox.images.building import PullOptions
from swegym_env.sandbox.images.references import parse
from swegym_env.sandbox.images.store import ImageStore, StoredImage, check_root, parse_size
from swegym_env.sandbox.linux.kernel import open_inside

__all__ = [
    "ImageStore",
    "PullOptions",
    "StoredImage",
    "identity_layer",
    "image_store",
    "parse_size",
    "resolve_image",
]

_stores: dict[Path, ImageStore] = {}


def image_store() -> ImageStore:
    """This process's store in `work_dir()`."""
    return _stores.setdefault(work_dir(), ImageStore(work_dir() / "images"))


def resolve_image(image: str) -> Path:
    """The directory that holds the root file system of `image`, made at first use under a lock.

    Raises:
        ImageError: it cannot be read, pulled or built; one line that ends with the tool's last message.
    """
    if image == "host":
        return host_image()
    reference = parse(image)
    if reference.kind == "directory":
        return check_root(Path(reference.source), image)
    return image_store().get(reference)


def identity_layer(root: Path) -> Path:
    """A layer over the image's root `root` that adds the sandbox's user to its `/etc/passwd` and `/etc/group`."""
    files = identity_files(*(_text_inside(root, f"/etc/{name}") for name in ("passwd", "group")))

    def write(target: Path) -> None:
        (target / "etc").mkdir()
        own(target / "etc")
        for name, text in files.items():
            (target / name).write_text(text, errors="surrogateescape")
            own(target / name)  # packages add users of their own

    return image_store().layers.get_or_build(("identity", "owned", *files.values()), write)


def _text_inside(root: Path, path: str) -> str:
    """The text of a file of an image, with links resolved inside it; "" where there is none."""
    directory = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with open(open_inside(directory, path, os.O_RDONLY | os.O_NONBLOCK), errors="surrogateescape") as file:
            return file.read() if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else ""
    except OSError:
        return ""
    finally:
        os.close(directory)
