"""The interface of a sandbox, which every back end implements."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from swegym_env.arguments import CheckedArguments, check_positive, nearest_or_all
from swegym_env.errors import ConfigurationError

if TYPE_CHECKING:
    from swegym_env.sandbox.budget import Budget

__all__ = [
    "Change",
    "CommandResult",
    "Endpoint",
    "Imports",
    "Limits",
    "ProgramEnded",
    "ProgramRequest",
    "Sandbox",
    "SandboxSpec",
    "Snapshot",
    "refused_command",
]


_FRACTIONAL = ("turn_timeout_s", "cpu_s", "cpus", "patch_cpu_s")
# What a sandbox needs that runs a single command.
_LEAST = {"processes": 3, "descriptors": 16, "inodes": 16}


@dataclass(frozen=True)
class CommandResult:
    """The result of one command.

    Attributes:
        output: standard output and error together, in order, UTF-8 with replacement characters; capped while it is
            read.
        exit_code: exit code as in bash; 124 after a timeout, 137 if the command was killed.
        timed_out: whether the timeout ended it, and everything that it had started.
        truncated_bytes: number of bytes dropped from the middle of the output to stay within the limit.
        duration_s: wall-clock seconds.
        limit: the limit that was reached, if any: "time", "cpu", "memory", "processes", "disk", "file_size", "output".
            If there are several, the one that ended the command; "output", which ends nothing, only if there is no
            other.
        starved: whether it timed out because other processes used the processors, see `limits.were_starved`.
    """

    output: str
    exit_code: int
    timed_out: bool = False
    truncated_bytes: int = 0
    duration_s: float = 0.0
    limit: str | None = None
    starved: bool = False


def refused_command(command: str) -> CommandResult | None:
    """The result of a command that no shell can be given; None for any other."""
    held = "a NUL byte" if "\0" in command else ""
    try:
        command.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        held = "half of a surrogate pair"
    return CommandResult(f"bash: a command cannot hold {held}\n", 2) if held else None


@dataclass(frozen=True)
class Limits(CheckedArguments):
    """Resource limits of a sandbox. Reaching one ends at most the command; the sandbox continues.

    Attributes:
        turn_timeout_s: wall-clock seconds of one command.
        cpu_s: processor seconds, summed over all cores, of one command and everything that it starts; accurate to about
            a tenth of a second. None: no limit.
        memory_bytes: resident memory of all processes together, and address space for the data of each process.
        cpus: number of processors that all processes together may use; needs a control group. When processors are
            shared, a sandbox counts as one process, whatever runs in it, and as a tenth of one while it keeps a
            processor busy.
        processes: number of processes and threads, including the two of the container itself; at least 3.
        descriptors: number of open files of each process; at least 16.
        file_size_bytes: size of one file.
        disk_bytes: size of the writable layer: everything that was written and not deleted. The layer is in memory if
            this limit and the machine's memory allow it, else on disk, where it uses at most half of the space that is
            free at the start.
        inodes: number of files of the writable layer; at least 16.
        output_bytes: size of the output of a command that is kept; the middle of longer output is dropped.
        patch_files: number of files and directories that the agent changed, ignored ones included. If this limit or one
            of the next three is exceeded, there is no patch: the observation says why, the episode continues, and
            submitted work is not resolved.
        patch_bytes: size of the patch, and of its files together with the names of all changed files.
        patch_depth: number of directories above a changed file.
        patch_cpu_s: processor seconds for making a patch.
    """

    turn_timeout_s: float = 60.0
    cpu_s: float | None = None
    memory_bytes: int = 4 << 30
    cpus: float = 4.0
    processes: int = 512
    descriptors: int = 4096
    file_size_bytes: int = 2 << 30
    disk_bytes: int = 4 << 30
    inodes: int = 500_000
    output_bytes: int = 1 << 20
    patch_files: int = 200_000
    patch_bytes: int = 64 << 20
    patch_depth: int = 1000
    patch_cpu_s: float = 10.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_positive(f"limits: {name}", value, optional=name == "cpu_s")
            if name not in _FRACTIONAL:
                if isinstance(value, float) and not value.is_integer():
                    raise ConfigurationError(f"limits: {name}: expected a whole number, got {value!r}")
                if value < _LEAST.get(name, 1):
                    raise ConfigurationError(f"limits: {name}: a sandbox needs at least {_LEAST[name]}, got {value!r}")
                object.__setattr__(self, name, int(value))

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Limits:
        """The defaults, with `given` replaced. Raises ConfigurationError for unknown names and values not positive."""
        if not isinstance(given, Mapping):
            raise ConfigurationError(f"limits: expected a dictionary, got {given!r}")
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise ConfigurationError(f"limits: unknown {name!r}{nearest_or_all(str(name), known)}")
        return cls(**given)


@dataclass(frozen=True)
class Imports(CheckedArguments):
    """A Python program in the layers whose modules are imported once for many sandboxes, see `sandbox.imported`.

    Attributes:
        program: its path in the sandbox; "-m": the program of the first of `modules`, see `LocalSandbox.run_module`.
        modules: modules to import; empty: those that the program's first statements import.
        environment: environment variables that it is started with, besides those of the shell.
        unless: files (absolute, below `~/`, or from the working directory) that the program reads before it imports
            some of the modules; where one of them exists, it is started as usual.
    """

    program: str
    modules: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SandboxSpec(CheckedArguments):
    """The specification of a sandbox; equal specifications make equal sandboxes.

    Attributes:
        image: a directory image prepared by `sandbox.images` (a root file system), or "host" for the machine's own
            /usr, read-only.
        layers: read-only directories mounted over the image's root, bottom first, published by `sandbox.layers`.
        workdir: directory in which the shell starts; for a task, the repository.
        env: environment variables of the shell; no other variable of the owner's environment is passed.
        path: directories of the sandbox that come first in the shell's PATH, whatever the image sets.
        binds: read-only host directories and files, host path → path inside. Where the owner is root, they must be open
            to everybody (`chmod o+r`).
        network: False: no interface but loopback; connecting to another address times out, looking up a name fails.
        port: port of the sandbox's loopback interface on which the owner answers requests, see `Sandbox.endpoint`;
            None: no such port.
        imports: a program that is imported once for all sandboxes with the same layers except the last; None: there is
            none.
    """

    image: str = "host"
    layers: tuple[Path, ...] = ()
    workdir: str = "/testbed"
    env: Mapping[str, str] = field(default_factory=dict)
    path: tuple[str, ...] = ()
    binds: Mapping[str, str] = field(default_factory=dict)
    network: bool = False
    port: int | None = None
    imports: Imports | None = None
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if self.port is not None and (self.network or not 1024 <= self.port < 1 << 16):
            raise ConfigurationError(
                f"SandboxSpec: port: expected 1024 to 65535, of a sandbox without network, got {self.port!r}"
            )


@dataclass(frozen=True)
class Change:
    """One path under `workdir` that differs from the layers below.

    Attributes:
        path: relative to the directory asked for, as bytes decoded with surrogateescape.
        kind: "written" (new or different content or mode), "symlink", "deleted" (a file or a whole directory).
        root: the directory on the host that `path` is relative to; None if it was deleted, or is on another machine.
        status: the file's stat data when it was found; None as `root`.
    """

    path: str
    kind: Literal["written", "symlink", "deleted"]
    root: str | None = None
    status: os.stat_result | None = field(default=None, compare=False)

    @property
    def host_path(self) -> Path | None:
        """The content on the host: never execute or follow it. None as `root`."""
        return None if self.root is None else Path(self.root, self.path)


@dataclass(frozen=True)
class ProgramRequest:
    """A complete HTTP request of a program in the sandbox, which waits for its answer.

    Attributes:
        number: number of the request, for `Endpoint.answer`.
        method: in capitals.
        path: with the query, as the program wrote it.
        headers: headers with lower-case names; the last one of repeated headers.
        body: the body, without transfer encoding.
    """

    number: int
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class ProgramEnded:
    """The program of `endpoint.run_command` has ended. Attributes: exit_code: its exit code; -1 if it was killed."""

    exit_code: int


class Endpoint(Protocol):
    """HTTP requests of programs in a sandbox to its port. Not thread-safe; nothing is read between the calls."""

    def next(self, timeout_s: float) -> ProgramRequest | ProgramEnded | None:
        """The next request or the end of the program, in order of arrival; None if nothing arrives in time.

        A request that is not HTTP, too large or too slow is not returned: the program gets an error.
        """

    def answer(self, number: int, status: int, body: bytes, content_type: str = "application/json") -> None:
        """Answer a request.

        If the program has closed the connection, the answer is kept, and sent when the program repeats exactly the same
        request.
        """


class Snapshot(Protocol):
    """A saved state of a sandbox: files, working directory, shell variables. Kept until `discard`."""

    def discard(self) -> None:
        """Release its resources."""


class Sandbox(Protocol):
    """A running sandbox with one long-lived bash. Not thread-safe: one caller at a time."""

    spec: SandboxSpec
    backend: str

    def start(self) -> None:
        """Start it and wait until the shell responds. Raises SandboxError."""

    def run(
        self, command: str, *, timeout_s: float | None = None, output_limit_bytes: int | None = None
    ) -> CommandResult:
        """Run `command` in the long-lived bash (variables and directory persist) with standard input closed.

        At the timeout everything that the command started is killed, and the shell stays usable. After a command that
        kills the shell, the next one runs in a new shell. Raises SandboxError if the sandbox is dead.
        """

    def read(self, path: str) -> bytes:
        """The content of a file inside (absolute, or relative to `workdir`).

        Raises FileNotFoundError or another OSError of its kind (no file, no permission; EFBIG: more than 64 MiB),
        SandboxError.
        """

    def write(self, path: str, content: bytes, *, mode: int = 0o644) -> None:
        """Write a file inside as the sandbox's user; parents are created, and an existing file keeps its mode.

        Raises PermissionError or another OSError of its kind, SandboxError.
        """

    def changes(self, root: str, *, budget: Budget | None = None) -> Sequence[Change]:
        """Every path under `root` (absolute, inside) that the episode changed, sorted.

        The cost depends on what changed, not on the size of `root`. A `.git` directly under `root` is skipped. Raises
        OverBudgetError beyond `budget` (on a server, its own from the sandbox's limits), SandboxError.
        """

    def endpoint(self) -> Endpoint:
        """The object that receives and answers requests of programs in the sandbox to `spec.port`; always the same.

        It belongs to the current shell: when the shell and everything in the sandbox ends, it ends too.

        Raises ConfigurationError if the specification has no port, SandboxError.
        """

    def snapshot(self) -> Snapshot:
        """Save files, working directory and shell variables."""

    def restore(self, snapshot: Snapshot) -> None:
        """Return to a snapshot of this sandbox (or of the one it was forked from)."""

    def fork(self) -> Sandbox:
        """A started, independent copy of the current state."""

    def interrupt(self) -> None:
        """Kill everything that runs in the sandbox; files are kept. May be called from any thread.

        A running command returns with exit code 137. The next command runs in a new shell.
        """

    def close(self) -> None:
        """End everything and remove everything; idempotent."""
