"""Packed layers in a folder, such as a directory on NFS; any HTTP server can serve the same folder.

FOLDER/index.json              the names of all layers, for servers that list no directories
FOLDER/layers/KIND-HASH.json   a manifest
FOLDER/blobs/sha256/DIGEST     a squashfs file
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from swegym_env.errors import LayerError
from swegym_env.paths import expand
from swegym_env.sandbox.sharing.api import Manifest, SharedStore

__all__ = ["FolderStore", "index_text", "read_index"]

_PARTIAL = ".*.partial"
_ABANDONED_S = 24 * 3600.0  # since somebody wrote to a part, on whatever machine


def index_text(names: list[str]) -> str:
    """The content of `index.json`."""
    return json.dumps({"layers": sorted(names)}, indent=0) + "\n"


def read_index(text: bytes, place: str) -> list[str]:
    """The names in `index.json`. Raises LayerError, whose text begins with `place`."""
    try:
        names = json.loads(text)["layers"]
        return sorted(str(name) for name in names)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise LayerError(f"{place}: its index.json is no list of layers: {error!r}") from error


class FolderStore(SharedStore):
    """Packed layers in a folder. Several machines may write to it at once."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.root = expand(address.removeprefix("file://")).absolute()

    def create(self) -> None:
        """See `SharedStore`."""
        self.root.mkdir(parents=True, exist_ok=True)
        partials = (path for place in ("blobs/sha256", "layers", ".") for path in (self.root / place).glob(_PARTIAL))
        for partial in partials:
            with contextlib.suppress(OSError):  # another machine removes it, too, or it is another user's
                if time.time() - partial.stat().st_mtime > _ABANDONED_S:
                    partial.unlink()

    def names(self) -> list[str]:
        """See `SharedStore`."""
        if not self.root.is_dir():
            raise LayerError(f"{self.address}: no such folder. Try: swegym layers export {self.address}")
        return sorted(path.stem for path in self.root.glob("layers/*.json") if not path.name.startswith("."))

    def manifest(self, name: str) -> Manifest | None:
        """See `SharedStore`."""
        if not self.root.is_dir():
            raise LayerError(f"{self.address}: no such folder. Try: swegym layers export {self.address}")
        try:
            text = (self.root / "layers" / f"{name}.json").read_bytes()
        except FileNotFoundError:
            return None
        return Manifest.from_json(text, name, self.address)

    @contextlib.contextmanager
    def open_blob(self, digest: str, start: int) -> Iterator[tuple[BinaryIO, int]]:
        """See `SharedStore`."""
        with (self.root / "blobs" / "sha256" / digest).open("rb") as file:
            file.seek(start)
            yield file, start

    def publish(self, manifest: Manifest, blob: Path) -> None:
        """See `SharedStore`."""
        place = self.root / "blobs" / "sha256" / manifest.digest
        if not place.is_file() or place.stat().st_size != manifest.size_bytes:
            with blob.open("rb") as source:
                _keep(source, place)
        _keep(io.BytesIO(manifest.to_json().encode()), self.root / "layers" / f"{manifest.name}.json")
        written = None
        while (names := self.names()) != written:  # another machine may have added a layer meanwhile
            _keep(io.BytesIO(index_text(names).encode()), self.root / "index.json")
            written = names


def _keep(source: BinaryIO, place: Path) -> None:
    """Write a file that is whole from the moment it has its name, even after a crash of the machine."""
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = place.with_name(f".{place.name}.{secrets.token_hex(4)}.partial")
    try:
        with partial.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
            target.flush()
            os.fsync(target.fileno())
        partial.rename(place)
    finally:
        partial.unlink(missing_ok=True)
