"""What travels: the manifest of a packed layer, and the interface of the places where packed layers are kept."""

from __future__ import annotations

import contextlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from swegym_env.errors import LayerError
from swegym_env.sandbox.layers import TRAVELLING, Provenance, layer_name

__all__ = ["FORMAT", "Manifest", "SharedStore"]

FORMAT = "swegym-layer-1"


@dataclass(frozen=True)
class Manifest:
    """What a packed layer is.

    Attributes:
        key: of the layer; its name is the hash of it, see `LayerStore`.
        digest: SHA-256 of the squashfs file, in hexadecimal.
        size_bytes: of the squashfs file.
        unpacked_bytes: of the files in it.
        entries: number of names in it.
        opaque: directories that hide those of lower layers.
        provenance: what it was built on and needs.
        made_by: program → version.
    """

    key: tuple[str, ...]
    digest: str
    size_bytes: int
    unpacked_bytes: int
    entries: int
    opaque: tuple[str, ...]
    provenance: Provenance
    made_by: Mapping[str, str]

    @property
    def name(self) -> str:
        """The name of the layer in every store: KIND-HASH."""
        return layer_name(self.key)

    def to_json(self) -> str:
        """The manifest as text; equal manifests give equal text."""
        return json.dumps({"format": FORMAT, "name": self.name, **asdict(self)}, indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, name: str, place: str) -> Manifest:
        """Read the manifest of the layer `name`. Raises LayerError: it is another; the text begins with `place`."""
        try:
            fields: dict[str, Any] = json.loads(text)
            if fields.pop("format") != FORMAT:
                raise ValueError(f"expected the format {FORMAT}")
            fields.pop("name")
            origin = fields.pop("provenance")
            provenance = Provenance(_texts(origin["parents"]), _text(origin["requires"]))
            key, opaque = _texts(fields.pop("key")), _texts(fields.pop("opaque"))
            made_by = {_text(program): _text(version) for program, version in fields.pop("made_by").items()}
            manifest = cls(key=key, opaque=opaque, provenance=provenance, made_by=made_by, **fields)
            numbers = manifest.size_bytes, manifest.unpacked_bytes, manifest.entries
            if not all(type(number) is int and number >= 0 for number in numbers):
                raise ValueError(f"expected three sizes, got {numbers}")
            if not re.fullmatch("[0-9a-f]{64}", _text(manifest.digest)):
                raise ValueError(f"expected a SHA-256 digest, got {manifest.digest!r}")
            if not key or manifest.name != name:
                raise ValueError("its key is that of another layer")
            if key[0] not in TRAVELLING:
                raise ValueError(f"expected a layer of {', '.join(sorted(TRAVELLING))}, got {key[0]!r}")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise LayerError(f"{place}: the manifest of {name} is refused: {error}") from error
        return manifest


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, got {value!r}")
    return value


def _texts(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise TypeError(f"expected a list, got {values!r}")
    return tuple(map(_text, values))


class SharedStore(ABC):
    """A place outside this machine's stores where packed layers are kept, by name and by digest.

    Nothing that it returns is trusted: `sharing.take_layer` checks everything. All methods raise LayerError or OSError
    where the place cannot be reached, or refuses.

    Attributes:
        address: as the user gave it.
    """

    def __init__(self, address: str) -> None:
        self.address = address

    def create(self) -> None:  # noqa: B027 - most places have nothing to make
        """Make the place, where it is this program's to make."""

    @abstractmethod
    def names(self) -> list[str]:
        """The names of all layers, sorted."""

    @abstractmethod
    def manifest(self, name: str) -> Manifest | None:
        """The manifest of a layer; None if the store has no such layer."""

    @abstractmethod
    def open_blob(self, digest: str, start: int) -> contextlib.AbstractContextManager[tuple[BinaryIO, int]]:
        """The bytes of the blob with this digest from `start` on, and where they begin: 0 if it cannot skip any."""

    @abstractmethod
    def publish(self, manifest: Manifest, blob: Path) -> None:
        """Keep a packed layer. Its manifest appears after its blob is complete."""
