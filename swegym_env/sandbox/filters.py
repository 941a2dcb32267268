"""The system call filter of the sandboxes of this machine, from the package's profile or the one of its user.

`SWEGYM_SECCOMP` names a profile of one's own, a file in the format of OCI runtimes and Docker. The owner of the machine
decides, not the task or the client of a server: a profile is no part of a `SandboxSpec`.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from swegym_env.errors import ConfigurationError
from swegym_env.files import make_directory, write_atomically
from swegym_env.paths import expand, work_dir
from swegym_env.sandbox.linux.seccomp import (
    PROFILE,
    RUNTIME_CALLS,
    compile_profile,
    profile_for_runtime,
    without_preallocation,
)

__all__ = ["profile_path", "program", "runtime_profile"]

_Result = TypeVar("_Result")
_ENTERING_CALLS = ("setns",)


def profile_path() -> Path:
    """The file of the profile in use."""
    return expand(os.environ.get("SWEGYM_SECCOMP") or PROFILE).absolute()


def program(*, for_runtime: bool = False, for_imports: bool = False, preallocation: bool = True) -> str:
    """The filter program, in base64.

    Args:
        for_runtime: allow what a container runtime needs; it must then install `runtime_profile`.
        for_imports: allow to enter namespaces; what enters a sandbox must then install the sandbox's filter.
        preallocation: allow to take space on a disk without writing.

    Raises:
        ConfigurationError: the profile cannot be read or is malformed, or this machine's system calls are unknown.
    """
    allowed = RUNTIME_CALLS if for_runtime else _ENTERING_CALLS if for_imports else ()
    return _read(_program, allowed, preallocation)


def runtime_profile() -> Path:
    """A file with the profile that a container runtime installs after it has made the container.

    Raises:
        ConfigurationError: as `program`; or the file cannot be written to the work directory.
    """
    text = _read(_runtime_text)
    file = work_dir() / f"seccomp-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    if not file.exists():
        make_directory(file.parent)
        write_atomically(file, text)
        file.chmod(0o644)
    return file


def _read(make: Callable[..., _Result], *arguments: object) -> _Result:
    path = profile_path()
    try:
        return make(path, path.stat().st_mtime_ns, *arguments)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{path}: no profile of system calls: {error}. Try: SWEGYM_SECCOMP=/another/file, or unset it"
        ) from error


@functools.lru_cache(maxsize=8)
def _program(path: Path, _changed_ns: int, allowed: tuple[str, ...], preallocation: bool) -> str:
    profile = _loaded(path) if preallocation else without_preallocation(_loaded(path))
    return base64.b64encode(compile_profile(profile, allowed=allowed)).decode()


@functools.lru_cache(maxsize=2)
def _runtime_text(path: Path, _changed_ns: int) -> str:
    return json.dumps(profile_for_runtime(_loaded(path)))


def _loaded(path: Path) -> dict[str, Any]:
    profile = json.loads(path.read_text())
    if not isinstance(profile, dict):
        raise ValueError(f"expected an object, got {type(profile).__name__}")  # noqa: TRY004 - of the content
    return profile
