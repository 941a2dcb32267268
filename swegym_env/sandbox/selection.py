"""Which back end works on this machine, found out by starting a sandbox with it."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from swegym_env.errors import BackendUnavailableError, InfrastructureError, StorageError
from swegym_env.paths import run_dir
from swegym_env.sandbox.backends import ApptainerBackend, Backend, NamespaceBackend
from swegym_env.sandbox.leases import boot_id
from swegym_env.sandbox.local import LocalSandbox
from swegym_env.sandbox.protocol import SandboxSpec

__all__ = ["BACKENDS", "REMEDIES", "find_apptainer", "select_backend", "try_backend"]

BACKENDS = ("apptainer", "namespace")
REMEDIES = {
    "apptainer": "scripts/install_apptainer.sh, or sandbox 'namespace' or 'auto', which work without it",
    "namespace": "user namespaces must be allowed (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone)",
}
_OLDEST_APPTAINER = (1, 1)
"""The first that makes sandboxes for ordinary users without a set-uid program."""
# What a back end must be able to do: remove and replace a directory of a lower layer, and stay without network.
_TRIAL = "cd / && rm -r mnt && mkdir mnt && touch mnt/x && ! tail -n +3 /proc/net/dev | grep -v ' lo:'"


def find_apptainer() -> str | None:
    """The path of Apptainer's command; None where it is not installed."""
    return shutil.which("apptainer")


def try_backend(name: str) -> str:
    """Start a sandbox with a back end, use it and end it; "" where that works, else the reason why not.

    Raises:
        StorageError: there is no place for a sandbox, whatever the back end.
    """
    backend = _make(name)
    if backend is None:
        return "no `apptainer` on PATH"
    sandbox = LocalSandbox(SandboxSpec(workdir="/tmp"), backend)
    try:
        sandbox.start()
        result = sandbox.run(_TRIAL, timeout_s=30)
    except StorageError:
        raise
    except InfrastructureError as error:
        return (_too_old() if name == "apptainer" else "") or str(error)
    finally:
        sandbox.close()
    return "" if result.exit_code == 0 else f"its first command failed: {result.output.strip()[-300:]}"


def _too_old() -> str:
    """Why an Apptainer that starts nothing here may be at fault; empty where its version is none of the old ones."""
    program = find_apptainer()
    try:
        said = subprocess.run(
            [program or "apptainer", "--version"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r"(\d+)\.(\d+)[\w.+-]*", said.stdout)
    if found is None or (int(found[1]), int(found[2])) >= _OLDEST_APPTAINER:
        return ""
    wanted = ".".join(map(str, _OLDEST_APPTAINER))
    return f"{program} is version {found[0]}, expected {wanted} or newer"


def select_backend(name: str = "auto") -> Backend:
    """The back end to use; with "auto" Apptainer where it works, else namespaces.

    What a trial found is kept for this boot, kernel, user and Apptainer, in memory and beside the sandboxes.

    Raises:
        BackendUnavailableError: none works, or not the one asked for; says why, and what would help.
        StorageError: there is no place for a sandbox.
    """
    if name not in (*BACKENDS, "auto"):
        raise BackendUnavailableError(f"no sandbox back end {name!r}; there are: auto, {', '.join(BACKENDS)}")
    reasons = {}
    for candidate in BACKENDS if name == "auto" else (name,):
        reasons[candidate] = _verdict(candidate)
        backend = _make(candidate)
        if not reasons[candidate] and backend is not None:
            return backend
    told = "; ".join(f"{candidate}: {reason}. Try: {REMEDIES[candidate]}" for candidate, reason in reasons.items())
    raise BackendUnavailableError(f"no sandbox can be started here: {told}")


def _make(name: str) -> Backend | None:
    makers: dict[str, Callable[[], Backend | None]] = {"apptainer": _make_apptainer, "namespace": NamespaceBackend}
    return makers[name]()


def _make_apptainer() -> Backend | None:
    program = find_apptainer()
    return None if program is None else ApptainerBackend(program)


@functools.cache
def _verdict(name: str) -> str:
    """What `try_backend` says, from the last time if nothing that matters has changed since."""
    program = find_apptainer() if name == "apptainer" else None
    installed = os.stat(program) if program else None
    version = (program, installed.st_mtime_ns, installed.st_size) if installed else None
    facts = (2, name, version, os.uname().release, os.geteuid(), boot_id())
    key = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
    record = run_dir() / f".{name}-{key}.json"
    try:
        return str(json.loads(record.read_text())["reason"])
    except (OSError, ValueError, KeyError, TypeError):
        reason = try_backend(name)
    if not reason:  # a failure may be cured meanwhile; only what works is taken for granted
        _write(record, json.dumps({"reason": reason}))
    return reason


def _write(path: Path, text: str) -> None:
    unfinished = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
        unfinished.write_text(text)
        unfinished.replace(path)
    except OSError:
        unfinished.unlink(missing_ok=True)  # only a saving is lost: the next process tries again
