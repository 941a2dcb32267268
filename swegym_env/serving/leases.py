"""The leases of a pool, on disk, so that a pool that is killed and restarted continues with all of them.

A row is written with the request id before the server is asked, and completed with its reply. If the pool dies between
the two, the client repeats the request, and the restarted pool forwards it to the same server with the same id, which
handles it once. The remaining time of a lease is not stored: no client could renew without a pool, so all start again.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from swegym_env.errors import ConfigurationError

__all__ = ["Lease", "LeaseBook"]

_TABLE = """
CREATE TABLE IF NOT EXISTS leases (
    request TEXT PRIMARY KEY, kind TEXT NOT NULL, node TEXT NOT NULL, identity TEXT NOT NULL, client TEXT NOT NULL,
    name TEXT NOT NULL DEFAULT '', answer BLOB NOT NULL DEFAULT '', digest BLOB NOT NULL DEFAULT x''
) WITHOUT ROWID
"""
_COLUMNS = "request, kind, node, identity, client, name, answer, digest"


@dataclass
class Lease:
    """A container or a snapshot at a server.

    Attributes:
        request: id of the request that created it.
        kind: "container" or "snapshot".
        node: address of the server.
        identity: of the server's process; a restarted server has lost it.
        client: its owner.
        name: of the container or snapshot; empty until the server has replied.
        reply: of the server, as sent to the client.
        digest: of the body of the request that created it; empty if it is not known.
        used: when it was last used or renewed, `time.monotonic()`.
        active: pending requests to it.
    """

    request: str
    kind: str
    node: str
    identity: str
    client: str
    name: str = ""
    reply: bytes = b""
    digest: bytes = b""
    used: float = field(default_factory=time.monotonic)
    active: int = 0


class LeaseBook:
    """All leases, in memory and in a file.

    Args:
        path: the file; None: memory alone.
    Raises:
        ConfigurationError: the file cannot be written, has another format, or is open in another pool.
    """

    def __init__(self, path: Path | None) -> None:
        self._by_request: dict[str, Lease] = {}
        self._by_name: dict[str, Lease] = {}
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
            self._file = sqlite3.connect(path or ":memory:", isolation_level=None, timeout=0.2)
        except (sqlite3.Error, OSError) as error:
            raise ConfigurationError(f"--state {path}: {error}") from error
        try:
            self._file.execute("PRAGMA locking_mode=EXCLUSIVE")
            self._file.execute("PRAGMA journal_mode=WAL")
            self._file.execute("PRAGMA synchronous=NORMAL")  # a killed process loses nothing
            self._file.execute(_TABLE)
            if "digest" not in {row[1] for row in self._file.execute("PRAGMA table_info(leases)")}:
                self._file.execute("ALTER TABLE leases ADD COLUMN digest BLOB NOT NULL DEFAULT x''")
            for row in self._file.execute(f"SELECT {_COLUMNS} FROM leases"):
                self._index(Lease(*row))
        except sqlite3.Error as error:
            self._file.close()
            raise ConfigurationError(f"--state {path}: {error}. Is another pool using it?") from error

    def __iter__(self) -> Iterator[Lease]:
        return iter(list(self._by_request.values()))

    def named(self, name: str) -> Lease | None:
        """The lease of a container or snapshot."""
        return self._by_name.get(name)

    def requested(self, request: str) -> Lease | None:
        """The lease that a request created or started to create."""
        return self._by_request.get(request)

    def put(self, lease: Lease) -> None:
        """Add or update a lease. Raises sqlite3.Error if it cannot be written."""
        about = (lease.request, lease.kind, lease.node, lease.identity, lease.client, lease.name)
        self._file.execute(
            "INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*about, lease.reply, lease.digest)
        )
        self._index(lease)

    def _index(self, lease: Lease) -> None:
        self._by_request[lease.request] = lease
        if lease.name:
            self._by_name[lease.name] = lease

    def drop(self, lease: Lease) -> None:
        """Delete a lease; idempotent. Raises sqlite3.Error if that cannot be written; then it stays."""
        if lease.request in self._by_request:
            self._file.execute("DELETE FROM leases WHERE request = ?", (lease.request,))
            del self._by_request[lease.request]
            self._by_name.pop(lease.name, None)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
