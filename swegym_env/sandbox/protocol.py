"""What a sandbox is: the contract between the engine below and the environment above."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from swegym_env.errors import ConfigurationError

__all__ = ["Change", "CommandResult", "Limits", "PatchSource", "Sandbox", "SandboxSpec", "Snapshot"]


@dataclass(frozen=True)
class CommandResult:
    """What one command in a sandbox did.

    Attributes:
        output: standard output and error together, as they came, UTF-8 with replacement characters; capped while it
            streams.
        exit_code: as bash reports it; 124 where the time limit ended it, 137 where it was killed.
        timed_out: the time limit ended it (and everything it had started).
        truncated_bytes: bytes of output dropped from the middle to keep within the limit.
        duration_s: wall-clock seconds.
        limit: which limit was reached, if one was: "time", "cpu", "memory", "processes", "disk", "file_size", "output".
            Where several were, the one that ended the command comes first, and "output" last: it ends nothing.
        starved: the time limit was met while others had the processors, see `starvation`.
    """

    output: str
    exit_code: int
    timed_out: bool = False
    truncated_bytes: int = 0
    duration_s: float = 0.0
    limit: str | None = None
    starved: bool = False


@dataclass(frozen=True)
class Limits:
    """What a sandbox may use. Reaching a limit ends at most the command; the sandbox stays.

    Attributes:
        turn_timeout_s: wall-clock seconds of one command.
        cpu_s: processor seconds of one command and all that it starts, over all cores; None: no such limit. Kept to
            about a tenth of a second.
        memory_bytes: resident memory of all processes together, and address space for data of each.
        processes: processes and threads, the few of the container's own included.
        file_size_bytes: of one file.
        disk_bytes: of the writable layer: all that was written and not deleted again. The layer lies in memory where
            that and the machine's memory allow, else on disk.
        inodes: files of the writable layer.
        output_bytes: of a command's output to keep; more is read and dropped from the middle.
    """

    turn_timeout_s: float = 60.0
    cpu_s: float | None = None
    memory_bytes: int = 4 << 30
    processes: int = 512
    file_size_bytes: int = 2 << 30
    disk_bytes: int = 4 << 30
    inodes: int = 500_000
    output_bytes: int = 1 << 20

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not value > 0:
                raise ConfigurationError(f"Limits: {name}: expected a positive number, got {value!r}")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Limits:
        """The defaults, with these in their place. Raises ConfigurationError where one is unknown or not positive."""
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise ConfigurationError(f"limits: unknown {name!r}; there are {', '.join(known)}")
        return cls(**given)


@dataclass(frozen=True)
class SandboxSpec:
    """Everything a sandbox is made of; equal specs make equal sandboxes.

    Attributes:
        image: a directory image prepared by `sandbox.images` (a root file system), or "host" for the machine's own
            /usr, read-only.
        layers: read-only directories laid over the image's root, bottom first, published by `sandbox.layers`.
        workdir: where the shell starts; the repository lies there.
        env: variables of the shell; nothing of the owner's environment is passed besides.
        path: directories inside that stand before the shell's PATH, whatever the image makes that.
        binds: read-only host directories, host path → path inside.
        network: False: no interface but loopback.
    """

    image: str = "host"
    layers: tuple[Path, ...] = ()
    workdir: str = "/testbed"
    env: Mapping[str, str] = field(default_factory=dict)
    path: tuple[str, ...] = ()
    binds: Mapping[str, str] = field(default_factory=dict)
    network: bool = False
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class Change:
    """One path under `workdir` that differs from the layers below.

    Attributes:
        path: relative to the directory asked for, as bytes decoded with surrogateescape.
        kind: "written" (new or different content or mode), "symlink", "deleted" (a file or a whole directory).
        host_path: where the content lies on the host (never to be executed or followed); None where deleted, and where
            the sandbox is another machine's.
    """

    path: str
    kind: Literal["written", "symlink", "deleted"]
    host_path: Path | None


class Snapshot(Protocol):
    """A frozen state of a sandbox: files, working directory, shell variables. Held until `discard`."""

    def discard(self) -> None:
        """Free what it holds."""


class Sandbox(Protocol):
    """A running sandbox with one long-lived bash. Not thread-safe: one caller at a time."""

    spec: SandboxSpec
    backend: str

    def start(self) -> None:
        """Bring it up and wait for the shell's first answer. Raises SandboxError."""

    def run(
        self, command: str, *, timeout_s: float | None = None, output_limit_bytes: int | None = None
    ) -> CommandResult:
        """Run `command` in the long-lived bash (variables and directory persist) with standard input closed.

        At the time limit the whole process tree that the command started is killed and the shell stays usable.
        Raises SandboxError if the sandbox is dead; a command that kills the shell gets a fresh shell and its exit code.
        """

    def read(self, path: str) -> bytes:
        """The content of a file inside (absolute, or relative to `workdir`).

        Raises FileNotFoundError or another OSError of its kind (no file, no permission), SandboxError.
        """

    def write(self, path: str, content: bytes, *, mode: int = 0o644) -> None:
        """Write a file inside as the sandbox's user; parents are made, and an existing file keeps its mode.

        Raises PermissionError or another OSError of its kind, SandboxError.
        """

    def changes(self, root: str) -> Sequence[Change]:
        """Every path under `root` (absolute, inside) that the episode changed, sorted; costs by what changed.

        A directory named `.git` directly under `root` is left out.
        """

    def snapshot(self) -> Snapshot:
        """Freeze files, working directory and shell variables."""

    def restore(self, snapshot: Snapshot) -> None:
        """Return to a snapshot of this sandbox (or of the one it was forked from)."""

    def fork(self) -> Sandbox:
        """A started, independent copy of the current state."""

    def close(self) -> None:
        """End everything and remove everything; idempotent."""


@runtime_checkable
class PatchSource(Protocol):
    """A sandbox whose patch is taken by whoever keeps its files: they lie on another machine."""

    def patch(self, *, fresh: bool = False) -> str:
        """The repository against its base commit; see `judging.patch.capture_patch`."""
