"""Packed layers in an OCI registry: `oci://HOST/NAME`, or `oci+http://HOST/NAME` for one without TLS.

A layer is an artifact whose tag is the layer's name. Its config is our manifest, its only layer the squashfs file.
Source: OCI distribution specification 1.1. Credentials are those of `docker login`, in `$DOCKER_CONFIG` or `~/.docker`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from http.client import HTTPResponse
from pathlib import Path
from typing import Any, BinaryIO

from swegym_env.errors import ConfigurationError, LayerError
from swegym_env.paths import expand
from swegym_env.sandbox.sharing.api import Manifest, SharedStore
from swegym_env.sandbox.sharing.http import begin_of, read_text, request

__all__ = ["RegistryStore"]

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.swegym.layer.v1+json"
_LAYER = "application/vnd.swegym.layer.v1.squashfs"
_NAME = re.compile(r"[a-z0-9]+(?:[._/-]+[a-z0-9]+)*")


class RegistryStore(SharedStore):
    """Packed layers in one repository of an OCI registry. Several machines may write to it at once."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        scheme, _, place = address.partition("://")
        self._host, _, self._repository = place.strip("/").partition("/")
        if not self._host or not _NAME.fullmatch(self._repository):
            raise ConfigurationError(f"{address}: expected oci://HOST/NAME, with a name in lower case")
        self._base = f"{'http' if scheme == 'oci+http' else 'https'}://{self._host}/v2/{self._repository}"
        self._authorization = ""

    def _send(
        self,
        method: str,
        url: str,
        *,
        blob: Path | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        accept: tuple[int, ...] = (200,),
    ) -> HTTPResponse:
        """A request with the credentials that the registry asks for; the first one may be answered by 401."""
        # Credentials of the registry are for it alone: an upload may be sent to another place.
        mine = urllib.parse.urlsplit(url).netloc == self._host
        for attempt in range(2):
            with contextlib.ExitStack() as stack:
                data = stack.enter_context(blob.open("rb")) if blob is not None else body
                size = blob.stat().st_size if blob is not None else None if body is None else len(body)
                response = request(
                    method,
                    url,
                    body=data,
                    size_bytes=size,
                    headers=headers,
                    authorization=self._authorization if mine else "",
                    accept=accept if attempt else (*accept, 401),
                )
            if response.status != 401:
                return response
            response.close()
            self._authorization = self._authorize(response.headers.get("WWW-Authenticate", ""))
        raise AssertionError("the second answer is never 401")

    def _authorize(self, challenge: str) -> str:
        """The header for the registry's challenge: a token of the server that it names, or user and password."""
        own = _login(self._host)
        kind, _, rest = challenge.partition(" ")
        if kind.lower() != "bearer":
            return own
        fields = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        if not fields.get("realm", "").startswith(("https://", "http://")):
            raise LayerError(f"{self.address}: no address for tokens in {challenge!r}")
        if self._base.startswith("https://") and not fields["realm"].startswith("https://"):
            raise LayerError(f"{self.address}: would send its password without TLS to {fields['realm']}")
        asked = {"service": fields.get("service", ""), "scope": fields.get("scope", "")}
        url = f"{fields['realm']}?{urllib.parse.urlencode({k: v for k, v in asked.items() if v})}"
        answer = _parsed(read_text(request("GET", url, authorization=own)), url)
        token = answer.get("token") or answer.get("access_token")
        if not isinstance(token, str):
            raise LayerError(f"{url}: no token in its answer")
        return f"Bearer {token}"

    def names(self) -> list[str]:
        """See `SharedStore`."""
        names: set[str] = set()
        url = f"{self._base}/tags/list?n=1000"
        while url:
            response = self._send("GET", url, accept=(200, 404))
            answer = _parsed(read_text(response), url)
            tags = set(map(str, answer.get("tags") or ()))
            if response.status == 404 or tags <= names:  # a registry that knows no pages sends the first one again
                break
            names |= tags
            following = re.match(r"<([^>]+)>", response.headers.get("Link", ""))
            url = _joined(url, following[1]) if following else ""
        return sorted(names)

    def manifest(self, name: str) -> Manifest | None:
        """See `SharedStore`."""
        url = f"{self._base}/manifests/{name}"
        response = self._send("GET", url, headers={"Accept": _MANIFEST}, accept=(200, 404))
        text = read_text(response)
        if response.status == 404:
            return None
        config = _parsed(text, url).get("config")
        if not isinstance(config, dict) or config.get("mediaType") != _CONFIG:
            raise LayerError(f"{self.address}: {name} is no layer of swegym")
        digest = str(config.get("digest"))
        if not re.fullmatch("sha256:[0-9a-f]{64}", digest):
            raise LayerError(f"{self.address}: {name}: expected a digest, got {digest!r}")
        content = read_text(self._send("GET", f"{self._base}/blobs/{digest}"))
        if hashlib.sha256(content).hexdigest() != digest.removeprefix("sha256:"):
            raise LayerError(f"{self.address}: the manifest of {name} has not the digest {digest}")
        return Manifest.from_json(content, name, self.address)

    @contextlib.contextmanager
    def open_blob(self, digest: str, start: int) -> Iterator[tuple[BinaryIO, int]]:
        """See `SharedStore`."""
        headers = {"Range": f"bytes={start}-"} if start else {}
        url = f"{self._base}/blobs/sha256:{digest}"
        with self._send("GET", url, headers=headers, accept=(200, 206)) as response:
            yield response, begin_of(response, start)

    def publish(self, manifest: Manifest, blob: Path) -> None:
        """See `SharedStore`."""
        config = manifest.to_json().encode()
        described = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "artifactType": _CONFIG,
            "config": {"mediaType": _CONFIG, "digest": _digest(config), "size": len(config)},
            "layers": [{"mediaType": _LAYER, "digest": f"sha256:{manifest.digest}", "size": manifest.size_bytes}],
        }
        self._upload(f"sha256:{manifest.digest}", blob)
        self._upload(_digest(config), config)
        url, text = f"{self._base}/manifests/{manifest.name}", json.dumps(described, sort_keys=True).encode()
        self._send("PUT", url, body=text, headers={"Content-Type": _MANIFEST}, accept=(201,)).close()

    def _upload(self, digest: str, content: Path | bytes) -> None:
        """Upload a blob in one piece, unless the registry has it."""
        head = self._send("HEAD", f"{self._base}/blobs/{digest}", accept=(200, 404))
        head.close()
        if head.status == 200:
            return
        begun = self._send("POST", f"{self._base}/blobs/uploads/", body=b"", accept=(202,))
        begun.close()
        place = _joined(f"{self._base}/blobs/uploads/", begun.headers.get("Location", ""))
        url = f"{place}{'&' if '?' in place else '?'}{urllib.parse.urlencode({'digest': digest})}"
        blob, body = (content, None) if isinstance(content, Path) else (None, content)
        self._send("PUT", url, blob=blob, body=body, accept=(201,)).close()


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _joined(url: str, place: str) -> str:
    """The address of `place`, which an answer of `url` names."""
    try:
        return urllib.parse.urljoin(url, place)
    except ValueError as error:
        raise LayerError(f"{url}: expected an address, got {place!r}: {error}") from error


def _parsed(text: bytes, url: str) -> dict[str, Any]:
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LayerError(f"{url}: expected JSON, got {text[:100]!r}") from error
    if not isinstance(answer, dict):
        raise LayerError(f"{url}: expected an object, got {text[:100]!r}")
    return answer


def _login(host: str) -> str:
    """The header for the user that `docker login` has stored for `host`; empty if there is none."""
    place = Path(os.environ.get("DOCKER_CONFIG") or expand("~/.docker")) / "config.json"
    try:
        stored = json.loads(place.read_bytes())["auths"][host]["auth"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return f"Basic {stored}"
