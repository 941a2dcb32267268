"""A registry on loopback with the OCI distribution protocol, which can fail on request, and images for it."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@dataclass
class Image:
    """An OCI image of one layer: the parts that a registry serves, and the uncompressed layer."""

    manifest: bytes
    config: bytes
    layer: bytes
    tar: bytes

    @property
    def blobs(self) -> dict[str, bytes]:
        return {digest(part): part for part in (self.manifest, self.config, self.layer)}


def make_image(root: Path, extra: dict[str, str] | None = None) -> Image:
    """An image of the files under `root` and of `extra`, path → text."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.add(root, arcname=".")
        for path, text in (extra or {}).items():
            member = tarfile.TarInfo(f"./{path}")
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    plain = buffer.getvalue()
    layer = gzip.compress(plain, 1, mtime=0)
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": ["PATH=/bin", "FROM_IMAGE=by its config"]},
            "rootfs": {"type": "layers", "diff_ids": [digest(plain)]},
        }
    ).encode()
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {"mediaType": CONFIG, "digest": digest(config), "size": len(config)},
        "layers": [{"mediaType": LAYER, "digest": digest(layer), "size": len(layer)}],
    }
    return Image(json.dumps(manifest).encode(), config, layer, plain)


def write_layout(image: Image, directory: Path) -> Path:
    """`image` as an OCI layout."""
    (directory / "blobs" / "sha256").mkdir(parents=True)
    for name, content in image.blobs.items():
        (directory / "blobs" / name.replace(":", "/")).write_bytes(content)
    (directory / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    entry = {"mediaType": MANIFEST, "digest": digest(image.manifest), "size": len(image.manifest)}
    (directory / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    return directory


def write_docker_archive(image: Image, path: Path) -> Path:
    """`image` as `docker save` writes it."""
    name = f"{digest(image.config)[7:]}.json"
    manifest = json.dumps([{"Config": name, "RepoTags": ["some/image:1"], "Layers": ["x/layer.tar"]}]).encode()
    with tarfile.open(path, "w") as tar:
        for place, content in ((name, image.config), ("x/layer.tar", image.tar), ("manifest.json", manifest)):
            member = tarfile.TarInfo(place)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


@dataclass
class Registry:
    """What a registry holds and its faults.

    Attributes:
        images: repository → image, whatever the tag.
        refuses: status codes for the next requests of manifests, before one succeeds; the last stays if `stays`.
        drops: how many of the next layers break off in the middle.
        stays: refuse for ever with the last of `refuses`.
        slow_s: wait so long within each layer.
        seen: how often each was requested: "manifest REPOSITORY", "layer".
    """

    images: dict[str, Image] = field(default_factory=dict)
    refuses: list[int] = field(default_factory=list)
    drops: int = 0
    stays: bool = False
    slow_s: float = 0.0
    seen: Counter[str] = field(default_factory=Counter)
    address: str = ""


_CODES = {401: "UNAUTHORIZED", 403: "DENIED", 404: "MANIFEST_UNKNOWN", 429: "TOOMANYREQUESTS", 500: "UNKNOWN"}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    registry: Registry

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].removeprefix("/v2/")
        repository, _, rest = path.partition("/manifests/")
        if not path:
            self.reply(200, b"{}", "application/json")
        elif rest:
            self.send_manifest(repository)
        else:
            self.send_blob(*path.split("/blobs/"))

    def do_HEAD(self) -> None:
        self.do_GET()

    def send_manifest(self, repository: str) -> None:
        self.registry.seen[f"manifest {repository}"] += 1
        image = self.registry.images.get(repository)
        code = 404 if image is None else 200
        if self.registry.refuses:
            code = (
                self.registry.refuses[0]
                if self.registry.stays and len(self.registry.refuses) == 1
                else self.registry.refuses.pop(0)
            )
        if code == 200 and image is not None:
            self.reply(200, image.manifest, MANIFEST)
            return
        error = {"errors": [{"code": _CODES[code], "message": "the registry's message"}]}
        self.reply(code, json.dumps(error).encode(), "application/json")

    def send_blob(self, repository: str, name: str) -> None:
        content = self.registry.images[repository].blobs[name]
        layer = content == self.registry.images[repository].layer
        self.registry.seen["layer"] += layer
        half = len(content) // 2
        self.reply(200, content[:half], "application/octet-stream", length=len(content))
        if layer and self.registry.drops:
            self.registry.drops -= 1
            self.close_connection = True
            return
        if layer:
            time.sleep(self.registry.slow_s)
        self.wfile.write(content[half:])

    def reply(self, code: int, body: bytes, kind: str, length: int | None = None) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.send_header("Docker-Content-Digest", digest(body))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Ignore clients that disconnect."""


@contextmanager
def serving() -> Iterator[Registry]:
    """Serve a registry on a free port for the length of the block."""
    registry = Registry()

    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"registry": registry}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    registry.address = f"127.0.0.1:{server.server_address[1]}"
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
