"""Servers of packed layers on loopback: static files, files with ranges and PUT, and Debian's `docker-registry`."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

__all__ = ["Files", "registry_program", "running_registry", "serving_files", "serving_static"]


@contextlib.contextmanager
def _running(handler: object) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:  # type: ignore[arg-type]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def serving_static(folder: Path) -> Iterator[str]:
    """Python's own server of files, which knows no ranges; its address."""
    with _running(functools.partial(_Quiet, directory=str(folder))) as address:
        yield address


class Files:
    """A server of files with ranges and PUT.

    Attributes:
        address: where it listens.
        ranges: first byte of each blob that was sent.
        slow_s: seconds before each 64 KiB of a blob.
        drops: how many blobs more are cut off in the middle.
    """

    def __init__(self) -> None:
        self.address = ""
        self.ranges: list[int] = []
        self.slow_s = 0.0
        self.drops = 0


@contextlib.contextmanager
def serving_files(folder: Path) -> Iterator[Files]:
    """A server of the files in `folder`, see `Files`."""
    files = Files()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            place = folder / self.path.lstrip("/")
            if not place.is_file():
                self.send_error(404)
                return
            content = place.read_bytes()
            begins = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
            self.send_response(206 if begins else 200)
            if begins:
                self.send_header("Content-Range", f"bytes {begins}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - begins))
            self.end_headers()
            if self.command == "HEAD":
                return
            end = len(content)
            if "/blobs/" in self.path:
                files.ranges.append(begins)
                if files.drops:
                    files.drops -= 1
                    end = (begins + end) // 2
            for start in range(begins, end, 1 << 16):
                if "/blobs/" in self.path:
                    time.sleep(files.slow_s)
                with contextlib.suppress(OSError):  # the reader was killed
                    self.wfile.write(content[start : min(end, start + (1 << 16))])
                    self.wfile.flush()

        def do_PUT(self) -> None:
            place = folder / self.path.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(201)
            self.end_headers()

    with _running(Handler) as address:
        files.address = address
        yield files


@functools.cache
def registry_program() -> Path:
    """Debian's `docker-registry`, taken from its package where it is not installed."""
    installed = shutil.which("docker-registry")
    if installed:
        return Path(installed)
    place = Path(f"/var/tmp/swegym-docker-registry-{os.geteuid()}")
    program = place / "usr/bin/docker-registry"
    if not program.exists():
        place.mkdir(mode=0o700, exist_ok=True)
        for command in (
            ["apt-get", "download", "docker-registry"],
            ["sh", "-c", "dpkg-deb -x docker-registry_*.deb ."],
        ):
            try:
                subprocess.run(command, cwd=place, capture_output=True, timeout=120, check=True)
            except (OSError, subprocess.SubprocessError):
                pytest.skip("no docker-registry, and apt-get cannot bring it: apt-get install docker-registry")
    return program


@contextlib.contextmanager
def running_registry(place: Path, auth: str) -> Iterator[str]:
    """A registry that keeps its data in `place`; host and port.

    Args:
        auth: the part of its configuration with this name, in YAML.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place.mkdir(exist_ok=True)
    (place / "config.yml").write_text(
        "version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\n"
        f"storage: {{filesystem: {{rootdirectory: {place}/data}}}}\nhttp: {{addr: '127.0.0.1:{port}'}}\n{auth}"
    )
    command = [str(registry_program()), "serve", str(place / "config.yml")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            deadline = time.monotonic() + 30
            while True:
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).close()
                    break
                except OSError:
                    assert server.poll() is None and time.monotonic() < deadline
                    time.sleep(0.05)
            yield f"127.0.0.1:{port}"
        finally:
            server.terminate()
