"""The back ends: ways of running a sandbox, in one registry that `open_sandbox`, `swegym` and its help read.

A back end is one file with one class, made with the text that the user gave: "apptainer", "namespace", or the address
of a server. It opens sandboxes, and nothing else: what a task needs is prepared above, by `swegym_env.prepare`. There
a back end differs in one attribute only. Where `server` is None, layers are built on this machine and patches are read
from the writable layer; otherwise the server prepares tasks, takes patches and grades.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from swegym_env.arguments import nearest_and_all
from swegym_env.errors import BackendUnavailableError
from swegym_env.registry import resolve, with_installed
from swegym_env.sandbox.api import Sandbox, SandboxSpec

if TYPE_CHECKING:
    from swegym_env.sandbox.remote.connection import ServerClient

__all__ = ["BACKENDS", "LOCAL_BACKENDS", "Backend", "find_backend", "make_backend"]

_BUILT_IN = {
    "apptainer": "swegym_env.sandbox.apptainer:ApptainerBackend",
    "namespace": "swegym_env.sandbox.namespace:NamespaceBackend",
    "http://HOST:PORT": "swegym_env.sandbox.remote.sandbox:RemoteBackend",
    "https://HOST:PORT": "swegym_env.sandbox.remote.sandbox:RemoteBackend",
}

BACKENDS: Mapping[str, str] = with_installed("swegym_env.sandboxes", _BUILT_IN)
"""What `sandbox=` and `--sandbox` take besides "auto" → class; an entry with "://" stands for all of its scheme."""

LOCAL_BACKENDS = tuple(name for name in _BUILT_IN if "://" not in name)
"""The back ends of this package and machine, in the order in which "auto" tries them."""


class Backend(Protocol):
    """One way of running sandboxes.

    Attributes:
        name: the text that it was made with.
        remedy: what to do where it does not work.
        server: the server that runs its sandboxes; None where this machine does.
    """

    name: str
    remedy: str

    @property
    def server(self) -> ServerClient | None:
        """See the attributes above."""

    def problem(self, *, fresh: bool = False) -> str:
        """Why it cannot work here; empty where it can.

        Args:
            fresh: try it now, instead of using the result of an earlier trial.
        Raises:
            StorageError: no back end can work: there is no place for a sandbox.
        """

    def open(self, spec: SandboxSpec) -> Sandbox:
        """A sandbox that is not started yet."""


def make_backend(name: str) -> Backend:
    """The back end of this name or address, whether it works or not.

    Raises:
        BackendUnavailableError: there is no such back end.
        ConfigurationError: the address is malformed, or the server's token is missing.
    """
    scheme, is_address, _ = str(name).partition("://")
    for known, target in BACKENDS.items():
        if known == name or (is_address and known.startswith(f"{scheme}://")):
            backend: Backend = resolve(target, "sandbox back end")(name)
            return backend
    raise BackendUnavailableError(f"no sandbox back end {name!r}{nearest_and_all(str(name), ('auto', *BACKENDS))}")


def find_backend(name: str = "auto") -> Backend:
    """The back end to use; "auto" is the first of `LOCAL_BACKENDS` that works here.

    Raises:
        BackendUnavailableError: none works, or not the one asked for; the text says why, and what would help.
        ConfigurationError: see `make_backend`.
        StorageError: there is no place for a sandbox.
    """
    problems = []
    for candidate in LOCAL_BACKENDS if name == "auto" else (name,):
        backend = make_backend(candidate)
        problem = backend.problem()
        if not problem:
            return backend
        problems.append(f"{candidate}: {problem}. Try: {backend.remedy}")
    raise BackendUnavailableError(f"no sandbox can be started here: {'; '.join(problems)}")
