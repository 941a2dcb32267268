"""What the first verdict on a task finds out about its tests, kept for later verdicts and for other machines.

How the tests run blind, which values decide and what the tests compare is found out by runs of the gold patch and the
base commit: about nine runs of the tests. Each finding is one file of JSON in a directory of the task beside the
layers. `keep_findings` makes a layer of them, which travels like others; what this machine has not found out is read
from that layer, if a shared store has it.

Findings contain expected values. They are no part of any sandbox.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from swegym_env.errors import LayerError
from swegym_env.files import write_atomically
from swegym_env.languages import digest_with_setup
from swegym_env.sandbox.layers import USE_NOTED_EVERY_S, LayerStore, Provenance, entries, system_of
from swegym_env.tasks.task import Task

__all__ = [
    "VERSIONS",
    "Findings",
    "find_findings",
    "keep_findings",
    "place_to_read",
    "unused_findings",
    "write_finding",
]

VERSIONS = {"blind": 33, "computed": 33, "merged": 29, "equality": 19}
"""Kind of finding → a number that changes with what such a finding contains, or with how it is made."""

_log = logging.getLogger(__name__)
_layers: dict[tuple[Path, str, str], Path | None] = {}  # root and address of a store, `digest_with_setup` → the layer
_lock = threading.Lock()


def place_to_read(task: Task, store: LayerStore | None, kind: str, key: str = "") -> Path:
    """The file with a finding: that of this machine, else that in the task's layer, which may have to be taken.

    It does not exist if the finding is not known.

    Args:
        store: of the layers; None: that of this machine.
        kind: see `VERSIONS`.
        key: which finding, where a task has several of a kind.
    """
    store = store or LayerStore()
    own = _directory(task, store) / _name(kind, key)
    if own.exists():
        with suppress(OSError):  # it belongs to another user, who notes its uses
            if time.time() - own.stat().st_mtime >= USE_NOTED_EVERY_S:
                own.touch()
        return own
    asked = store.root, store.address, digest_with_setup(task)
    with _lock:
        is_known, layer = asked in _layers, _layers.get(asked)
    if not is_known:
        try:
            layer = find_findings(task, store)
        except LayerError as error:
            _log.warning("%s: what other machines know of its tests is not used: %s", task.instance_id, error)
        with _lock:
            _layers[asked] = layer
    return layer / own.name if layer is not None else own


def write_finding(task: Task, store: LayerStore | None, kind: str, text: str, key: str = "") -> None:
    """Keep a finding on this machine; see `place_to_read`."""
    directory = _directory(task, store or LayerStore())
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomically(directory / _name(kind, key), text)


def find_findings(task: Task, store: LayerStore) -> Path | None:
    """The layer with what is known of a task's tests, if this or the shared store has it.

    Raises:
        LayerError: the shared store does not answer, or the layer is refused.
    """
    return store.find(_key(task), _provenance(task))


def keep_findings(task: Task, store: LayerStore) -> Path | None:
    """The layer with what is known of a task's tests, made of the findings of this machine if there is none.

    It is made once: what is found out after that stays on this machine. None if nothing is known.

    Raises:
        LayerError: as `LayerStore.get_or_build`.
    """
    directory = _directory(task, store)
    own = [place for kind in VERSIONS for name in (_name(kind), _name(kind, "*")) for place in directory.glob(name)]

    def copy(layer: Path) -> None:
        for place in own:
            shutil.copyfile(place, layer / place.name)
            (layer / place.name).chmod(0o600)

    return store.get_or_build(_key(task), copy, _provenance(task)) if own else find_findings(task, store)


@dataclass(frozen=True)
class Findings:
    """What this machine has found out about one task.

    Attributes:
        directory: of the files.
        last_used: when one of them was written or read last, in seconds since the epoch; it is noted once a day.
        size_bytes: of the files.
    """

    directory: Path
    last_used: float
    size_bytes: int


def unused_findings(store: LayerStore, seconds: float) -> list[Findings]:
    """What was not used for so long, at least two days, and may be removed; the least recently used first.

    Directories in which earlier versions kept findings are among them.
    """
    oldest = time.time() - max(seconds, 2 * USE_NOTED_EVERY_S)
    earlier = [store.root.parent / kind for kind in ("blind", "equality")]
    found = []
    for directory in (*entries(_root(store)), *earlier):
        with suppress(FileNotFoundError):  # there is none, or another process removes it
            each = [directory.stat(), *(place.stat() for place in directory.rglob("*") if place.is_file())]
            size = sum(one.st_size for one in each[1:])
            found.append(Findings(directory, max(one.st_mtime for one in each), size))
    return sorted((one for one in found if one.last_used < oldest), key=lambda one: one.last_used)


def _root(store: LayerStore) -> Path:
    return store.root.parent / "findings"


def _directory(task: Task, store: LayerStore) -> Path:
    return _root(store) / digest_with_setup(task)


def _name(kind: str, key: str = "") -> str:
    return f"{kind}-{VERSIONS[kind]}{'-' if key else ''}{key}.json"


def _key(task: Task) -> tuple[str, ...]:
    versions = ",".join(f"{kind}-{version}" for kind, version in VERSIONS.items())
    return "findings", versions, system_of(task.image), digest_with_setup(task)


def _provenance(task: Task) -> Provenance:
    return Provenance(requires=system_of(task.image))
