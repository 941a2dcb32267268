"""Packed layers on an HTTP server: the files of `folder`, read by GET from any static server, written by PUT.

The standard library's client is used: it takes the proxies of the environment, and credentials from `~/.netrc`.
"""

from __future__ import annotations

import base64
import contextlib
import io
import netrc
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import BinaryIO

from swegym_env.errors import LayerError
from swegym_env.sandbox.sharing.api import Manifest, SharedStore
from swegym_env.sandbox.sharing.folder import index_text, read_index

__all__ = ["HttpStore", "begin_of", "read_text", "request"]

_TIMEOUT_S = 60.0  # of one read or write of a socket
_MOST_TEXT_BYTES = 64 << 20  # of a manifest or a list of names


def request(
    method: str,
    url: str,
    *,
    body: bytes | BinaryIO | None = None,
    size_bytes: int | None = None,
    headers: Mapping[str, str] | None = None,
    authorization: str = "",
    accept: tuple[int, ...] = (200,),
) -> HTTPResponse:
    """Send one request, follow redirects, and return the open response, whose status is one of `accept`.

    Args:
        body: what is sent; a file needs `size_bytes`.
        authorization: sent to this host only, never on to where it redirects.
    Raises:
        LayerError: another status, or no answer.
    """
    sent = urllib.request.Request(url, method=method, headers=dict(headers or {}), data=body)
    if size_bytes is not None:
        sent.add_header("Content-Length", str(size_bytes))
        if not sent.has_header("Content-type"):  # urllib's way to write it
            sent.add_header("Content-Type", "application/octet-stream")
    if authorization:
        sent.add_unredirected_header("Authorization", authorization)
    try:
        response: HTTPResponse = urllib.request.urlopen(sent, timeout=_TIMEOUT_S)
    except urllib.error.HTTPError as error:
        if error.code in accept:
            return error  # type: ignore[return-value]  # it has the same methods
        with error, contextlib.suppress(OSError, HTTPException):
            reason = " ".join(error.read(300).decode(errors="replace").split())
            raise LayerError(f"{method} {url}: {error.code} {error.reason}: {reason}") from error
        raise LayerError(f"{method} {url}: {error.code} {error.reason}") from error
    except (OSError, HTTPException, ValueError) as error:  # the last: sent to what is no address
        reason = str(getattr(error, "reason", "") or error)
        raise LayerError(f"{method} {url}: no answer: {reason}. Try: another address of layers") from error
    if response.status not in accept:
        with response:
            raise LayerError(f"{method} {url}: {response.status} {response.reason}")
    return response


def read_text(response: HTTPResponse) -> bytes:
    """The whole body of a response. Raises LayerError if it is larger than 64 MiB or ends early."""
    with response:
        try:
            text = response.read(_MOST_TEXT_BYTES + 1)
        except (OSError, HTTPException) as error:
            raise LayerError(f"{response.url}: the answer ends early: {error}") from error
    if len(text) > _MOST_TEXT_BYTES:
        raise LayerError(f"{response.url}: the answer is larger than {_MOST_TEXT_BYTES >> 20} MiB")
    return text


def begin_of(response: HTTPResponse, start: int) -> int:
    """Where the body of the answer to a request for the bytes from `start` on begins. Raises LayerError: elsewhere."""
    if response.status == 206:
        expected = f"bytes {start}-"
        given = response.headers.get("Content-Range", "")
        if not given.startswith(expected):
            raise LayerError(f"{response.url}: expected {expected!r}, got the range {given!r}")
        return start
    return 0


class HttpStore(SharedStore):
    """Packed layers on an HTTP server. Its list of names has one writer at a time."""

    def _url(self, *parts: str) -> str:
        return "/".join((self.address.rstrip("/"), *map(urllib.parse.quote, parts)))

    def _authorization(self) -> str:
        host = urllib.parse.urlsplit(self.address).hostname or ""
        try:
            found = netrc.netrc().authenticators(host)
        except (OSError, netrc.NetrcParseError):
            return ""
        return "Basic " + base64.b64encode(f"{found[0]}:{found[2]}".encode()).decode() if found else ""

    def _get(self, *parts: str, accept: tuple[int, ...] = (200,), start: int = 0) -> HTTPResponse:
        headers = {"Range": f"bytes={start}-"} if start else {}
        return request("GET", self._url(*parts), headers=headers, authorization=self._authorization(), accept=accept)

    def _put(self, body: BinaryIO, size_bytes: int, *parts: str) -> None:
        url, mine, stored = self._url(*parts), self._authorization(), (200, 201, 204)
        request("PUT", url, body=body, size_bytes=size_bytes, authorization=mine, accept=stored).close()

    def _put_text(self, text: str, *parts: str) -> None:
        content = text.encode()
        self._put(io.BytesIO(content), len(content), *parts)

    def names(self) -> list[str]:
        """See `SharedStore`."""
        response = self._get("index.json", accept=(200, 404))
        text = read_text(response)
        return read_index(text, self.address) if response.status == 200 else []

    def manifest(self, name: str) -> Manifest | None:
        """See `SharedStore`."""
        response = self._get("layers", f"{name}.json", accept=(200, 404))
        text = read_text(response)
        return None if response.status == 404 else Manifest.from_json(text, name, self.address)

    @contextlib.contextmanager
    def open_blob(self, digest: str, start: int) -> Iterator[tuple[BinaryIO, int]]:
        """See `SharedStore`."""
        with self._get("blobs", "sha256", digest, accept=(200, 206), start=start) as response:
            yield response, begin_of(response, start)

    def publish(self, manifest: Manifest, blob: Path) -> None:
        """See `SharedStore`."""
        place = ("blobs", "sha256", manifest.digest)
        head = request("HEAD", self._url(*place), authorization=self._authorization(), accept=(200, 404))
        head.close()
        if head.status == 404 or head.headers.get("Content-Length") != str(manifest.size_bytes):
            with blob.open("rb") as file:
                self._put(file, manifest.size_bytes, *place)
        self._put_text(manifest.to_json(), "layers", f"{manifest.name}.json")
        names = self.names()
        if manifest.name not in names:
            self._put_text(index_text([*names, manifest.name]), "index.json")
