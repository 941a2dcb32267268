"""Episodes from anywhere, recorded here or written in ATIF, and as conversations to learn from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from swegym_env.adapters.atif import from_atif
from swegym_env.agent.formats.calls import readable
from swegym_env.errors import ConfigurationError
from swegym_env.recording.record import Record, find_records, read_record

__all__ = ["messages_of", "read_episodes"]


def messages_of(record: Record) -> dict[str, Any]:
    """A conversation for cloning (`demonstrations` of `swe-train`): what the agent read and wrote, in turns."""
    system = [{"role": "system", "content": record.system_prompt}] if record.system_prompt else []
    read = [record.prompt, *(turn.observation for turn in record.turns[:-1])]
    turns = [
        {"role": role, "content": readable(content)}
        for observation, turn in zip(read, record.turns, strict=True)
        for role, content in (("user", observation), ("assistant", turn.action))
    ]
    return {"messages": [*system, *turns], **({"tools": list(record.tools)} if record.tools else {})}


def read_episodes(place: str | Path) -> list[Record]:
    """The recorded episodes and the documents in ATIF at or below a folder, or in one file, sorted by their places.

    Raises:
        ConfigurationError: there is none, or one cannot be read.
    """
    place = Path(place)
    found = [] if place.is_file() else [read_record(folder) for folder in _folders(place)]
    taken = {record.place for record in found}
    for path in [place] if place.is_file() else sorted(place.rglob("*.json")):
        if path.parent not in taken and (document := _document(path, named=path == place)) is not None:
            record = from_atif(document, str(path))
            found.append(Record(**{**vars(record), "place": path}))
    if not found:
        raise ConfigurationError(f"{place}: neither a recorded episode nor a trajectory in ATIF")
    return sorted(found, key=lambda record: str(record.place))


def _folders(place: Path) -> Iterator[Path]:
    try:
        yield from find_records(place)
    except ConfigurationError:
        if not place.is_dir():
            raise


def _document(path: Path, *, named: bool) -> dict[str, Any] | None:
    """The trajectory in ATIF in a file; None if it contains none.

    Args:
        named: whether the caller named this file itself: then a file without a trajectory is an error.
    """
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        if named:
            raise ConfigurationError(f"{path}: cannot be read: {error}") from error
        return None
    atif = isinstance(found, dict) and str(found.get("schema_version", "")).startswith("ATIF")
    if named and not atif:
        raise ConfigurationError(f"{path}: not a trajectory in ATIF: schema_version: expected ATIF-v1.x")
    return found if atif else None
