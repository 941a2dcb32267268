"""Layers that travel: packed into squashfs files, kept in a shared store, taken from there instead of being built.

A shared store is named by its address, in `$SWEGYM_LAYERS` or on the command line; `STORES` has a class by scheme.
What a store sends is checked before it counts: the squashfs file by its SHA-256 digest, its content by `squashfs`. It
becomes visible as a layer by one rename, like one that was built here. Manifests are not signed: who can write those of
a store decides what the tasks of its users run.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import platform
import stat
import tempfile
import time
import urllib.parse
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path

from swegym_env import __version__
from swegym_env.errors import ConfigurationError, LayerError
from swegym_env.files import is_full
from swegym_env.registry import resolve
from swegym_env.sandbox.layers import LayerRecord, LayerStore, Provenance, layer_name, mark_opaque, system_of
from swegym_env.sandbox.sharing.api import Manifest, SharedStore
from swegym_env.sandbox.sharing.squashfs import Tree, pack, packer_version, read_tree, unpack

__all__ = ["STORES", "import_layer", "offered_keys", "open_shared_store", "pack_layer", "share_layer", "take_layer"]

_log = logging.getLogger(__name__)
STORES: Mapping[str, str] = {
    "file": "swegym_env.sandbox.sharing.folder:FolderStore",
    "http": "swegym_env.sandbox.sharing.http:HttpStore",
    "https": "swegym_env.sandbox.sharing.http:HttpStore",
    "oci": "swegym_env.sandbox.sharing.registry:RegistryStore",
    "oci+http": "swegym_env.sandbox.sharing.registry:RegistryStore",
}
"""Scheme of an address → class of the shared store; an address without a scheme is a folder."""

_PIECE_BYTES = 1 << 20
_RETRIES, _FIRST_WAIT_S = 4, 0.5
_OPAQUE = "testbed"  # only the repository, and its .git, hide directories of lower layers


@functools.lru_cache(maxsize=16)
def open_shared_store(address: str) -> SharedStore:
    """The shared store at an address: a folder, `file://…`, `http(s)://…`, or `oci://HOST/NAME`.

    Raises:
        ConfigurationError: no address, or of no such kind.
    """
    scheme, separator, _ = address.partition("://")
    if not separator:
        scheme = "file"
    if scheme not in STORES:
        known = ", ".join(f"{name}://" for name in STORES)
        raise ConfigurationError(f"{address}: expected the address of a store of layers: a folder, {known}")
    try:
        urllib.parse.urlsplit(address if separator else "")
    except ValueError as error:
        raise ConfigurationError(f"{address}: expected an address: {error}") from error
    store: SharedStore = resolve(STORES[scheme], "shared store")(address)
    return store


@functools.lru_cache(maxsize=16)
def offered_keys(address: str, kind: str) -> Mapping[str, tuple[str, ...]]:
    """Name → key of the layers of one kind in a shared store; asked once by each process."""
    shared = open_shared_store(address)
    manifests = [shared.manifest(name) for name in shared.names() if name.startswith(f"{kind}-")]
    return {manifest.name: manifest.key for manifest in manifests if manifest is not None}


def pack_layer(store: LayerStore, name: str, blob: Path) -> Manifest:
    """Pack a layer of `store` into the file `blob`.

    Raises:
        LayerError: the store does not have it, it does not travel, it holds what would be refused elsewhere, or
            `mksquashfs` is missing.
    """
    record = _require_record(store, name)
    layer = store.root / name
    opaque = tuple(_opaque_directories(layer))
    pack(layer, blob)  # after that: it fails if the layer has been removed meanwhile
    tree = read_tree(blob)
    manifest = Manifest(
        key=record.key,
        digest=_digest(blob),
        size_bytes=blob.stat().st_size,
        unpacked_bytes=tree.size_bytes,
        entries=tree.entries,
        opaque=opaque,
        provenance=record.provenance,
        made_by={"swegym": __version__, "mksquashfs": packer_version()},
    )
    _check(manifest, tree, name)
    return manifest


def _require_record(store: LayerStore, name: str) -> LayerRecord:
    record = store.record(name)
    if record is None:
        raise LayerError(f"{name}: no such layer under {store.root}, or one that does not travel")
    return record


def share_layer(store: LayerStore, name: str, shared: SharedStore) -> tuple[Manifest, bool]:
    """Keep a layer of `store` in `shared`; its manifest, and whether it was sent: False if it was there already.

    It is packed under its lock, so that it is not removed meanwhile, and beside it, where garbage is collected.

    Raises:
        LayerError: it cannot be packed, or `shared` does not take it.
    """
    present = shared.manifest(name)
    if present is not None:
        return present, False
    _require_record(store, name)
    with contextlib.ExitStack() as stack:
        try:
            scratch = stack.enter_context(store.building(name))
        except OSError:  # the store belongs to another user, or is read-only
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="swegym-pack-")))
        blob = scratch / name
        manifest = pack_layer(store, name, blob)
        try:
            shared.publish(manifest, blob)
        except OSError as error:
            raise LayerError(f"{shared.address}: {name} cannot be written: {error}") from error
    return manifest, True


def import_layer(store: LayerStore, shared: SharedStore, name: str) -> Manifest:
    """Take a layer of `shared`, whose store `store` is, by its name; one for another system is left out.

    Raises:
        LayerError: `shared` does not have it, or see `take_layer`.
    """
    manifest = shared.manifest(name)
    if manifest is None:
        raise LayerError(f"{name} is not in {shared.address}")
    if manifest.provenance.requires in ("", system_of("host"), platform.machine()):
        store.find(manifest.key, manifest.provenance)
    return manifest


def take_layer(shared: SharedStore, key: tuple[str, ...], provenance: Provenance, target: Path) -> bool:
    """Fill the empty directory `target` with a layer of `shared`, all of it checked.

    The squashfs file is first stored beside `target`. If that is interrupted, the next call continues it.

    Args:
        provenance: what the layer has to fit to.
    Returns:
        False if `shared` does not have the layer, or has it for another system only.
    Raises:
        LayerError: `shared` does not answer, or sends what is damaged or must not be in a layer.
        OSError: `target` cannot be written.
    """
    name = layer_name(key)
    try:
        manifest = shared.manifest(name)
    except OSError as error:
        raise LayerError(f"{shared.address}: {name} cannot be read: {error}") from error
    if manifest is None:
        return False
    if manifest.provenance.requires != provenance.requires:
        _log.warning(
            "%s: %s is for %s, not for %s",
            shared.address,
            name,
            manifest.provenance.requires or "any system",
            provenance.requires or "any system",
        )
        return False
    blob = (
        target.parent / f"{name}.download"
    )  # garbage as soon as nobody has the lock, see `LayerStore.collect_garbage`
    _download(shared, manifest, blob)
    try:
        tree = read_tree(blob)
        _check(manifest, tree, f"{shared.address}: {name}")
        unpack(blob, tree, target)
    finally:
        blob.unlink()
    for place in manifest.opaque:
        mark_opaque(target / place)
    _write_out(target)
    return True


def _check(manifest: Manifest, tree: Tree, what: str) -> None:
    """Check what the file alone does not tell. Raises LayerError."""
    found = tree.entries, tree.size_bytes
    if found != (manifest.entries, manifest.unpacked_bytes):
        expected = f"{manifest.entries} names and {manifest.unpacked_bytes} bytes"
        raise LayerError(f"{what} is refused: expected {expected}, got {found[0]} and {found[1]}")
    for place in manifest.opaque:
        if place.split("/")[0] != _OPAQUE or tree.kind_of(place) != stat.S_IFDIR:
            raise LayerError(f"{what} is refused: {place!r} may not hide directories of lower layers")
    if tree.kind_of(_OPAQUE) not in (0, stat.S_IFDIR):
        raise LayerError(f"{what} is refused: {_OPAQUE!r} is no directory")


def _download(shared: SharedStore, manifest: Manifest, blob: Path) -> None:
    """Complete the file `blob`, as far as it is there already, and check its digest.

    Raises:
        LayerError: it cannot be had; what was received stays for the next attempt. Or it has another digest; then it is
            removed.
        OSError: the disk is full; then it is removed, too.
    """
    resumed = blob.is_file() and blob.stat().st_size > 0
    for attempt in range(_RETRIES + 1):
        begun = blob.stat().st_size if blob.is_file() else 0
        try:
            _receive(shared, manifest, blob, begun)
            break
        except (OSError, HTTPException, LayerError) as error:
            if isinstance(error, OSError) and is_full(error):
                blob.unlink(missing_ok=True)  # everything else on the disk needs its space
                raise
            moved = blob.is_file() and blob.stat().st_size > begun
            if attempt == _RETRIES or not moved:
                raise LayerError(f"{shared.address}: {manifest.name} cannot be received: {error}") from error
            _log.warning("%s: %s was interrupted: %s; trying again", shared.address, manifest.name, error)
            time.sleep(_FIRST_WAIT_S * 2**attempt)
    digest = _digest(blob)
    if digest == manifest.digest:
        return
    blob.unlink()
    if resumed:  # what an earlier attempt left may have been the damaged part
        _download(shared, manifest, blob)
        return
    raise LayerError(
        f"{shared.address}: {manifest.name} is damaged: expected sha256 {manifest.digest}, got {digest}. "
        "Try: remove it there, and export it again"
    )


def _receive(shared: SharedStore, manifest: Manifest, blob: Path, begun: int) -> None:
    """Write to `blob` what it lacks of the manifest's size. Raises LayerError if the store sends less or more."""
    if begun > manifest.size_bytes:
        begun = 0
    if begun < manifest.size_bytes:
        with shared.open_blob(manifest.digest, begun) as (source, start), blob.open("r+b" if start else "wb") as file:
            file.seek(start)
            left = manifest.size_bytes - start
            while left and (piece := source.read(min(_PIECE_BYTES, left))):
                file.write(piece)
                left -= len(piece)
        if left:
            raise LayerError(f"{left} of {manifest.size_bytes} bytes are missing")


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def _opaque_directories(layer: Path) -> list[str]:
    found = []
    for directory, names, _ in os.walk(layer):
        names.sort()
        for name in names:
            path = os.path.join(directory, name)
            if not os.path.islink(path) and "user.overlay.opaque" in os.listxattr(path):
                found.append(os.path.relpath(path, layer))
    return sorted(found)


def _write_out(directory: Path) -> None:
    """Have everything on the file system of `directory` on disk, so that a crash leaves no layer with empty files."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        library = ctypes.CDLL(None, use_errno=True)
        if library.syncfs(descriptor) < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(directory))
    finally:
        os.close(descriptor)
