"""Values of `info` and texts as the JSON of a message, small enough for every client.

An agent decides how large some of them are, its patch above all. A client that refuses a message would count the
episode as one that the machine broke, and so an agent could take its failures out of the average.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["bounded", "bounded_text", "plain"]

_MOST_CHARACTERS = 3 << 20  # of a text, and of `info`: each takes at most 12 bytes, and OpenEnv's clients 100 MiB


def plain(value: Any) -> Any:
    """Convert a value of `info` to one that JSON can represent."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()  # half of a surrogate pair has no UTF-8
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items() if key != "timing"}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value if value is None or isinstance(value, bool | int | float) else plain(str(value))


def bounded(info: Mapping[str, Any]) -> dict[str, Any]:
    """`info` as values for JSON. If it is too large, its largest values are removed; `left_out` has their sizes."""
    metadata: dict[str, Any] = plain(info)
    sizes = {key: _characters(value) for key, value in metadata.items()}
    left_out: dict[str, int] = {}
    while sum(sizes.values()) > _MOST_CHARACTERS:
        largest = max(sizes, key=lambda key: sizes[key])
        left_out[largest] = sizes.pop(largest)
    if not left_out:
        return metadata
    return {**{key: metadata[key] for key in sizes}, "left_out": left_out}


def bounded_text(text: str) -> str:
    """A text as JSON can represent it, cut if it is too long."""
    return str(plain(text[:_MOST_CHARACTERS]))


def _characters(value: Any) -> int:
    """About how many characters a value has in JSON, without escapes; writing a large value would take seconds."""
    if isinstance(value, str):
        return 2 + len(value)
    if isinstance(value, Mapping):
        return 2 + sum(4 + len(key) + _characters(each) for key, each in value.items())
    return 2 + sum(map(_characters, value)) if isinstance(value, list) else 8
