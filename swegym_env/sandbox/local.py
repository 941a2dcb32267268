"""Sandboxes on this machine: a container that the supervisor runs, a shell in it, the layers below it.

`LocalBackend` is what the back ends of this machine share; one such back end is one file that says how the container
is started.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import posixpath
import secrets
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from swegym_env.errors import ConfigurationError, InfrastructureError, SandboxBrokenError, SandboxError, StorageError
from swegym_env.files import make_directory, write_atomically
from swegym_env.paths import run_dir
from swegym_env.sandbox.api import Change, CommandResult, SandboxSpec, Snapshot, refused_command
from swegym_env.sandbox.budget import Budget, OverBudgetError
from swegym_env.sandbox.changes import find_changes
from swegym_env.sandbox.client import clean_up, supervisor
from swegym_env.sandbox.endpoint import Endpoint
from swegym_env.sandbox.filters import program
from swegym_env.sandbox.host_image import HOME, host_binds
from swegym_env.sandbox.identity import check_binds, own, sandbox_user
from swegym_env.sandbox.images import identity_layer, resolve_image
from swegym_env.sandbox.imported import (
    ImportedProgram,
    find_imported,
    module_script,
    place_program,
    release,
    started_through,
)
from swegym_env.sandbox.leases import boot_id, lease_directory, storage_error
from swegym_env.sandbox.linux.files import remove_tree
from swegym_env.sandbox.shell import BASH, STATE_FILE, Shell
from swegym_env.sandbox.unclosed import close_unclosed, note_unclosed
from swegym_env.sandbox.writable import FormerLayer, SandboxDirectory, WritableLayer, copy_files, run_dir_for

__all__ = ["HOSTNAME", "LocalBackend", "LocalSandbox", "LocalSnapshot", "known_problem"]

HOSTNAME = "sandbox"
_SHELLS_PER_COMMAND = 2  # what an earlier command left running may have killed the first before it read this one
_FEW_FILES = 200  # a layer with less is copied faster than another shell is started
_MOST_FORMER_LAYERS = 8  # each takes a part of the options of a mount, which fill at most a page
_MOST_CLOCK_OFFSET_S = 30 * 24 * 3600
_LAUNCH_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S, _LOOKS = 2.0, 5
_RUNNING = "RS"  # states of a thread; one in an uninterruptible sleep stops before it does anything else
_IMPORTED_ENDED = "the imported program was ended, and with it all sandboxes below it"
_ENDING_S = 1.0  # how long the imported program may take to end after a sandbox below it
_RESTART_TIMEOUT_S = 10.0  # many times what it takes; a shell that the agent has replaced may never answer
# What a back end must be able to do: remove and replace a directory of a lower layer, and stay without network.
_TRIAL = "cd / && rm -r mnt && mkdir mnt && touch mnt/x && ! tail -n +3 /proc/net/dev | grep -v ' lo:'"


class LocalBackend:
    """A way of starting a container on this machine; see `backends.Backend`.

    Args:
        name: of the back end in the registry.
    """

    remedy: ClassVar[str]
    server: ClassVar[None] = None

    def __init__(self, name: str) -> None:
        self.name = name

    def request(self, spec: SandboxSpec, directory: Path, command: Sequence[str]) -> dict[str, Any]:
        """The supervisor's request that runs `command` on the writable layer in `directory`."""
        uid, gid = sandbox_user()
        root = resolve_image(spec.image)
        layers = [root, *spec.layers] if spec.image == "host" else [root, identity_layer(root), *spec.layers]
        return {
            "isolation": "supervisor",
            "id": directory.name,
            "directory": str(directory),
            "layers": [str(layer) for layer in layers],
            "binds": list(spec.binds.items()),
            "shared": list(host_binds().items()) if spec.image == "host" else [],
            "network": spec.network,
            "port": spec.port,
            "uid": uid,
            "gid": gid,
            "hostname": HOSTNAME,
            "command": list(command),
            "environment": {"PATH": _LAUNCH_PATH, "HOME": HOME},
            "filter": program(),
        }

    def missing(self) -> str:
        """Which program is missing; empty where all are there."""
        return ""

    def version(self) -> tuple[object, ...]:
        """What besides the kernel and the user decides whether it works: a trial's result holds while this is equal."""
        return ()

    def explain(self, failure: str) -> str:
        """A better reason for a failed start than `failure`, where there is one."""
        return failure

    def open(self, spec: SandboxSpec) -> LocalSandbox:
        """See `backends.Backend.open`."""
        return LocalSandbox(spec, self)

    def manner(self) -> str:
        """How its sandboxes are started, where there is more than one way."""
        return ""

    def problem(self, *, fresh: bool = False) -> str:
        """See `backends.Backend.problem`.

        A success is remembered for this boot, kernel, user and version, in memory and in `run_dir()`.
        """
        missing = self.missing()
        return missing or (self.try_now() if fresh else known_problem(self.name, self.version(), self.try_now))

    def try_now(self) -> str:
        """Start a sandbox, use it and end it; why that failed, or an empty text."""
        sandbox = self.open(SandboxSpec(workdir="/tmp"))
        try:
            sandbox.start()
            result = sandbox.run(_TRIAL, timeout_s=30)
        except StorageError:
            raise
        except InfrastructureError as error:
            return self.explain(str(error))
        finally:
            sandbox.close()
        return "" if result.exit_code == 0 else f"its first command failed: {result.output.strip()[-300:]}"


_known: dict[tuple[object, ...], str] = {}


def known_problem(what: str, version: tuple[object, ...], trial: Callable[[], str]) -> str:
    """The result of a trial: the recorded one where nothing that matters has changed since.

    Args:
        what: is tried.
        version: what besides the kernel and the user decides the result.
        trial: returns why it does not work, or an empty text.
    """
    if (what, version) not in _known:
        _known[what, version] = _recorded_problem(what, version, trial)
    return _known[what, version]


def _recorded_problem(what: str, version: tuple[object, ...], trial: Callable[[], str]) -> str:
    facts = (5, what, version, os.uname().release, os.geteuid(), boot_id())
    key = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
    record = run_dir() / f".{what}-{key}.json"
    try:
        return str(json.loads(record.read_text())["reason"])
    except (OSError, ValueError, KeyError, TypeError):
        reason = trial()
    if not reason:  # a failure is not recorded: its cause may be repaired meanwhile
        with contextlib.suppress(OSError):  # otherwise the next process tries again
            make_directory(record.parent, 0o711)
            write_atomically(record, json.dumps({"reason": reason}))
    return reason


def _read_only_binds(spec: SandboxSpec) -> dict[str, str]:
    """Host path → path inside."""
    return {**(host_binds() if spec.image == "host" else {}), **spec.binds}


class LocalSnapshot:
    """Files, working directory and variables of a sandbox: former writable layers, and a directory with a copy.

    Args:
        spec: of the sandbox.
        shell_directory: the working directory.
        former: the former layers, bottom first, which it shares.
        directory: with the copy of the layer over them; None: there is nothing over them.
    """

    def __init__(
        self, spec: SandboxSpec, shell_directory: str, former: Sequence[FormerLayer], directory: Path | None
    ) -> None:
        self.spec = spec
        self.shell_directory = shell_directory
        self.former = _shared(former)
        self.directory = directory
        self.discarded = False
        self._owner = os.getpid()

    def discard(self) -> None:
        """Free what it holds; idempotent."""
        self.discarded = True
        if self.directory is not None:
            clean_up({"do": "remove", "directory": str(self.directory)})
        former, self.former = self.former, ()
        if self._owner == os.getpid():
            for layer in former:
                layer.directory.release()


def _shared(layers: Sequence[FormerLayer]) -> tuple[FormerLayer, ...]:
    """The same layers, for one more user."""
    for layer in layers:
        layer.directory.share()
    return tuple(layers)


class LocalSandbox:
    """A sandbox that belongs to this process; see `api.Sandbox`. Made by `open_sandbox`."""

    _note_unclosed = staticmethod(note_unclosed)

    def __init__(self, spec: SandboxSpec, backend: LocalBackend) -> None:
        self.spec = spec
        self.backend = backend.name
        self._backend = backend
        self._kind = "sandbox"
        self._directory: SandboxDirectory | None = None
        self._former: tuple[FormerLayer, ...] = ()  # below the writable layer, bottom first
        self._layer: WritableLayer | None = None
        self._layers_made = 0
        self._limits = spec.limits  # of its first layer, and so of those that replace it
        self._lower: list[Path] = []  # the read-only layers below all of these, bottom first
        self._fuse = False
        self._shell: Shell | None = None
        self._has_stopped = False  # whether processes inside may be stopped
        self._endpoint: Endpoint | None = None
        self._between = 0  # see `Shell`
        self._cwd = spec.workdir
        self._used = False  # a shell has run on the files of the writable layer
        self._closed = False
        self._broken = ""  # why it was closed, where that was the agent's fault
        self._owner = os.getpid()
        self.clock_offset_s = secrets.randbelow(_MOST_CLOCK_OFFSET_S)  # the same for all its shells
        self._imported: ImportedProgram | None = None
        self._launched_with: dict[str, Any] = {}
        self.imports_problem = "" if spec.imports is None else "the sandbox was not started"

    def start(self) -> None:
        """See `api.Sandbox.start`.

        Raises:
            SandboxError: it does not start; StorageError: there is no place for its files.
            ImageError: there is no such image.
            ConfigurationError: a source of `spec.binds` is missing, or nobody inside could read it.
        """
        if self._closed:
            raise SandboxError("the sandbox is closed")
        close_unclosed()
        if self._layer is None:
            if self.spec.imports is not None:
                self._imported, self.imports_problem = find_imported(self.spec, self)
                if self._imported is not None:
                    self.clock_offset_s = self._imported.clock_offset_s
            layer = self.make_layer()
            if self._imported is not None and self.spec.imports is not None:
                place_program(layer, self.spec.imports.program)
        if self._shell is None:
            self._launch()

    def make_layer(self) -> WritableLayer:
        """Make the writable layer of a sandbox that was not started; errors as `start`."""
        check_binds(self.spec.binds)
        layer = self._make_layer()
        try:
            layer.populate(self.spec.workdir, _read_only_binds(self.spec))
        except OSError as error:
            raise storage_error(error, run_dir_for(self.spec.limits)) from error
        self._layer = layer
        return layer

    def unstarted(self, spec: SandboxSpec) -> LocalSandbox:
        """Another sandbox on the same back end, for what is imported once."""
        place = LocalSandbox(spec, self._backend)
        place._kind = "imports"
        return place

    def _make_layer(self, former: Sequence[FormerLayer] = ()) -> WritableLayer:
        """A new, empty writable layer, over former ones; the first call also makes the sandbox's directory."""
        if self._directory is None:
            parent = run_dir_for(self.spec.limits)
            self._directory = SandboxDirectory(lease_directory(self._kind, supervisor().pid, parent))
            directory = self._directory.path
            try:
                for name in ("root", "dev", "binds", "empty"):
                    make_directory(f"{directory}/{name}")
                own(f"{directory}/binds")
            except OSError as error:
                raise storage_error(error, parent) from error
        self._layers_made += 1
        size_bytes, inodes = (sum(getattr(layer, name) for layer in former) for name in ("size_bytes", "inodes"))
        left = replace(
            self._limits, disk_bytes=self._limits.disk_bytes - size_bytes, inodes=self._limits.inodes - inodes
        )
        layer = WritableLayer(self._directory.path, f"layer-{self._layers_made}", left)
        if not former:
            self._limits = replace(self._limits, disk_bytes=layer.disk_bytes, inodes=layer.inodes)
        return layer

    def _make_layer_over(self, former: Sequence[FormerLayer]) -> WritableLayer:
        """A writable layer over former ones, ready for a shell."""
        layer = self._make_layer(former)
        layer.continue_from(former[-1], STATE_FILE)
        return layer

    def _replace_layer(self, layer: WritableLayer, former: Sequence[FormerLayer]) -> None:
        """Let a layer over former ones, which are shared, take the place of this sandbox's."""
        before, self._former, self._layer = self._former, _shared(former), layer
        for one in before:
            one.directory.release()

    def _freeze(self) -> bool:
        """Make the writable layer a former one, which forks and snapshots share without a copy.

        Only where it costs less than a copy, and nothing but an idle bash is running: bash ends, and the next command
        starts another with its state. False where the layer stays.
        """
        layer = self._writable()
        if not layer.has_own_file_system or self._fuse or len(self._former) >= _MOST_FORMER_LAYERS:
            return False
        try:
            size_bytes, inodes = layer.used()
        except OSError as error:  # the supervisor has died, and a layer in memory with it
            raise SandboxError(f"the sandbox's files cannot be reached: {error}") from error
        taken = [sum(getattr(one, name) for one in self._former) for name in ("size_bytes", "inodes")]
        most = self._limits.disk_bytes // 2, self._limits.inodes // 2
        if inodes < _FEW_FILES or size_bytes + taken[0] > most[0] or inodes + taken[1] > most[1]:
            return False
        if self._shell is not None:
            if self._shell.processes() != [self._shell.pid]:
                return False
            self._shell.end()
            self._drop_shell()
        assert self._directory is not None
        upper = layer.path / "upper"
        former = (*self._former, FormerLayer(self._directory, upper, layer.upper, size_bytes, inodes))
        self._replace_layer(self._make_layer_over(former), former)
        return True

    def _launch(self) -> None:
        """Start a container on the writable layer, with the state of the last shell if it saved one that works.

        Where that fails after commands have run, the same start without the files that they changed shows whose fault
        it is; a second attempt rules out that the machine failed for a moment.

        Raises:
            SandboxBrokenError: the changed files are at fault.
            SandboxError: the machine is.
        """
        failure = self._try_to_launch()
        if failure and self._used and self._starts_without_changes():
            failure = self._try_to_launch()
            if failure and self._writable().alive():
                raise SandboxBrokenError(
                    f"no shell starts in the sandbox any more: {failure}. "
                    "The same start works without the files that were changed in it"
                )
        if failure:
            raise SandboxError(f"the {self.backend} sandbox did not start: {failure}. Try: swegym doctor")
        self._used = True

    def _try_to_launch(self) -> str:
        """Start a container on the writable layer; "", or why no shell answers."""
        if self._imported is not None:
            failure = "" if self._imported.alive() else "the imported program has ended"  # the files are there
            failure = failure or self._launch_container()
            if not failure:
                return ""
            if self._used and not self._imported.alive(_ENDING_S):
                raise SandboxError(_IMPORTED_ENDED)
            release(self._imported)
            self._imported, self.imports_problem = None, failure
        return self._launch_container()

    def _launch_container(self) -> str:
        layer = self._writable()
        try:
            resumes = self._used and layer.has_state(STATE_FILE)
        except OSError as error:
            return f"its files cannot be reached: {error}"
        request = self.request(layer, BASH)
        if self._imported is not None:
            request["within"] = self._imported.name
        self._launched_with = request
        timeout_s = _RESTART_TIMEOUT_S if self._used else _START_TIMEOUT_S
        failure = ""
        for resume in (True, False) if resumes else (False,):
            shell = Shell(supervisor(), request, layer, self.spec, self._cwd, self._between)
            failure = shell.start(resume=resume, timeout_s=timeout_s)
            if not failure:
                self._shell, self._fuse, self._between = shell, shell.fuse, shell.between
                return ""
            if resume:
                layer.discard_state(STATE_FILE)
        return failure

    def request(self, layer: WritableLayer, command: Sequence[str]) -> dict[str, Any]:
        """The supervisor's request that runs `command` on a writable layer of this sandbox."""
        request = self._backend.request(self.spec, layer.path.parent, command)
        request["layer"] = str(layer.path)
        request["limits"] = dict(vars(self.spec.limits))  # all fields are numbers
        request["clock_offset_s"] = self.clock_offset_s
        self._lower = [Path(place) for place in request["layers"]]
        request["layers"] = [*request["layers"], *(str(former.path) for former in self._former)]
        request["limits"] |= {"disk_bytes": layer.disk_bytes, "inodes": layer.inodes}
        if not layer.has_own_file_system:
            request["filter"] = program(for_runtime=request["isolation"] == "command", preallocation=False)
        request["limits"]["files_in_memory_bytes"] = self.spec.limits.disk_bytes * layer.has_own_file_system
        return request

    def _starts_without_changes(self) -> bool:
        """Whether a sandbox of the same specification starts in half of the time that this one had."""
        if not self._writable().alive():
            return False
        control = LocalSandbox(self.spec, self._backend)
        began = time.monotonic()
        try:
            control.start()
        except SandboxError:
            return False
        finally:
            control.close()
        return time.monotonic() - began < _RESTART_TIMEOUT_S / 2

    def run(
        self, command: str, *, timeout_s: float | None = None, output_limit_bytes: int | None = None
    ) -> CommandResult:
        """See `api.Sandbox.run`.

        At the timeout the shell saves its state and everything in the sandbox is killed. The next command runs in a new
        shell, in the same directory and with the same variables and functions. The same holds after `exit` and `exec`.
        """
        limits = self.spec.limits
        timeout = limits.turn_timeout_s if timeout_s is None else timeout_s
        output_limit = limits.output_bytes if output_limit_bytes is None else output_limit_bytes
        if (refused := refused_command(command)) is not None:
            return refused
        text = command.encode("utf-8", "surrogateescape")
        for _ in range(_SHELLS_PER_COMMAND):
            shell = self._live()
            try:
                result = shell.run(text, timeout, output_limit)
            except SandboxBrokenError as error:  # its files fill the disk: nobody else has room before they are gone
                self._broken = str(error)
                self.close()
                raise
            finally:
                self._cwd = shell.directory or self._cwd
                self._drop_ended_shell()
            if not shell.unread:
                break
        was_killed = self._shell is None and result.exit_code == 128 + signal.SIGKILL and not result.timed_out
        if self._imported is not None and was_killed and not self._imported.alive(_ENDING_S):
            raise SandboxError(_IMPORTED_ENDED)
        return result

    def _require_started(self) -> None:
        if self._broken:
            raise SandboxBrokenError(self._broken)
        if self._closed or self._layer is None:
            raise SandboxError("the sandbox is closed" if self._closed else "the sandbox was not started")
        if self._has_stopped:  # an interrupt came while they were to go on
            self._go_on()

    def _live(self) -> Shell:
        self._require_started()
        if self._shell is None:
            self._launch()
        assert self._shell is not None
        return self._shell

    def _writable(self) -> WritableLayer:
        assert self._layer is not None
        return self._layer

    def _drop_shell(self) -> None:
        shell, self._shell = self._shell, None  # first: an interrupted close must not be made twice
        if shell is not None:
            shell.close()

    def _drop_ended_shell(self) -> None:
        if self._shell is not None and self._shell.ended:
            self._drop_shell()

    def read(self, path: str) -> bytes:
        """See `api.Sandbox.read`."""
        return self._live().read(posixpath.join(self.spec.workdir, path))

    def write(self, path: str, content: bytes, *, mode: int = 0o644) -> None:
        """See `api.Sandbox.write`; an existing file keeps its mode."""
        self._live().write(posixpath.join(self.spec.workdir, path), content, mode)

    @contextlib.contextmanager
    def watching(self, paths: Sequence[str]) -> Iterator[Callable[[], bool]]:
        """Watch files for as long as the same shell runs; the block is given what says whether one was opened.

        Args:
            paths: absolute, inside; those of no file are left out.
        Raises:
            OSError: they cannot be watched.
        """
        watch = self._live().watch_opening(paths)

        def is_opened() -> bool:
            try:
                return bool(os.read(watch, 1 << 16))
            except BlockingIOError:
                return False

        try:
            yield is_opened
        finally:
            os.close(watch)

    def endpoint(self) -> Endpoint:
        """See `api.Sandbox.endpoint`."""
        if self._endpoint is None:
            listener = self._live().listener
            if listener is None:
                raise ConfigurationError("the sandbox has no endpoint: SandboxSpec.port is None")
            self._endpoint = Endpoint(listener.dup())
        return self._endpoint

    @property
    def starts_imported(self) -> str:
        """The words in front of the program of `spec.imports` that start it; empty where it is started as usual."""
        return "" if self._imported is None else started_through(self._imported.interpreter)

    def start_imported(self) -> str:
        """Let the imported program be the one that waits to be started; "", or why it is started as usual."""
        if self._imported is None:
            return self.imports_problem
        assert self._directory is not None
        return self._imported.fork(self._directory.path.name, self._live(), self._launched_with)

    def run_module(
        self, command: Sequence[str], *, timeout_s: float | None = None, output_limit_bytes: int | None = None
    ) -> CommandResult | None:
        """Run `python3 -m NAME ARG…` of the module that `spec.imports` imports, in `spec.workdir`, as `run` does.

        The shell must have the variables that it started with. None where a fork would give the program anything else
        than a start of its own, or none is possible: it is to be run as usual.
        """
        if self._imported is None or self.spec.imports is None:
            return None
        assert self._directory is not None
        name, shell = self._directory.path.name, self._live()
        with self._imported.forked_module(name, shell, self._launched_with, command, self.spec.workdir) as problem:
            if problem:
                self.imports_problem = problem
                return None
            return self.run(module_script(), timeout_s=timeout_s, output_limit_bytes=output_limit_bytes)

    def changes(self, root: str, *, budget: Budget | None = None) -> Sequence[Change]:
        """See `api.Sandbox.changes`."""
        with self.listing() as (upper, lowers):
            return find_changes(upper, lowers, root, fuse=self._fuse, budget=budget, own=self.own_layers)

    @property
    def own_layers(self) -> int:
        """How many of the last layers of `listing` were writable before a fork or a snapshot."""
        return len(self._former)

    @property
    def fuse(self) -> bool:
        """Whether fuse-overlayfs serves the files."""
        return self._fuse

    @contextlib.contextmanager
    def listing(self) -> Iterator[tuple[Path, Sequence[Path]]]:
        """The writable layer and those below it, bottom first, as this process sees them.

        Raises:
            SandboxError: it is not running, or the block raised an OSError other than OverBudgetError.
        """
        self._require_started()
        assert self._layer is not None
        try:
            yield self._layer.upper, [*self._lower, *(former.view for former in self._former)]
        except OverBudgetError:
            raise
        except OSError as error:
            if self._shell is not None:
                self._shell.check()
            raise SandboxError(f"the sandbox's files cannot be listed: {error}") from error

    def require_files(self) -> None:
        """Raise SandboxError if its files are gone: a reading that began before may have missed some.

        Their paths lead through the supervisor's root and vanish when it dies, which looks like an agent that removes
        files meanwhile. They do not come back, so a reading was whole if they are there after it.
        """
        self._require_started()
        try:
            for place in (self._writable().upper, *(former.view for former in self._former)):
                os.stat(place)
        except (FileNotFoundError, ProcessLookupError) as error:
            raise SandboxError(f"the sandbox's files are gone: its supervisor died ({error})") from error

    def snapshot(self) -> LocalSnapshot:
        """See `api.Sandbox.snapshot`.

        A writable layer with many files is shared; a small one, or one that processes use, is copied while the
        processes inside are stopped.
        """
        self._save_state()
        if self._freeze():
            return LocalSnapshot(self.spec, self._cwd, self._former, None)
        directory = lease_directory("snapshot", supervisor().pid, run_dir_for(self.spec.limits))
        snapshot = LocalSnapshot(self.spec, self._cwd, self._former, directory)
        try:
            self._while_stopped(lambda upper: copy_files(upper, directory / "upper"))
        except BaseException:
            snapshot.discard()
            raise
        return snapshot

    def has_written_more_than(self, size_bytes: int, files: int) -> bool:
        """Whether what was written since the start takes more than either."""
        self._require_started()
        sizes, counts = ([getattr(one, name) for one in self._former] for name in ("size_bytes", "inodes"))
        return self._writable().is_larger_than(size_bytes - sum(sizes), files - sum(counts))

    def copy_layers(self, target: Path) -> list[Path]:
        """Copy what was written, as layers: over the same layers they give the same files.

        What runs inside is stopped meanwhile. The marks of deleted files are kept, the saved state of the shell is not.

        Args:
            target: an existing directory that the supervisor can reach.
        Returns:
            The copies, bottom first: directories in `target`, all but the last of layers shared with snapshots.
        Raises:
            SandboxError: they cannot be copied.
        """
        snapshot = self.snapshot()
        try:
            sources = [former.path for former in snapshot.former]
            if snapshot.directory is not None:
                sources.append(snapshot.directory / "upper")
            copies = [target / f"written-{number}" for number in range(len(sources))]
            for source, copy in zip(sources, copies, strict=True):
                copy_files(source, copy)
                remove_tree(copy / STATE_FILE[1:].partition("/")[0])
        finally:
            snapshot.discard()
        return copies

    def restore(self, snapshot: Snapshot) -> None:
        """See `api.Sandbox.restore`; background processes end."""
        if not isinstance(snapshot, LocalSnapshot) or snapshot.spec != self.spec:
            raise SandboxError("a snapshot of another sandbox cannot be restored here")
        if snapshot.discarded:
            raise SandboxError("a snapshot that was discarded cannot be restored")
        self._require_started()
        if self._shell is not None:
            self._shell.end()
            self._drop_shell()
        former = snapshot.former
        if snapshot.directory is None:
            layer = self._make_layer_over(former)
        else:
            layer = self._make_layer(former)
            layer.copy_from(snapshot.directory / "upper", over_former=bool(former))
        self._writable().remove()
        self._replace_layer(layer, former)
        self._cwd = snapshot.shell_directory
        self._launch_if_possible()

    def fork(self) -> LocalSandbox:
        """See `api.Sandbox.fork`; what of the writable layer is shared and what is copied, see `snapshot`."""
        self._save_state()
        other = LocalSandbox(self.spec, self._backend)
        other._cwd, other._used = self._cwd, True
        other._between, other._limits = self._between, self._limits
        other.clock_offset_s = self.clock_offset_s  # no clock goes backwards
        try:
            if self._freeze():
                other._replace_layer(other._make_layer_over(self._former), self._former)
            else:
                other._replace_layer(other._make_layer(self._former), self._former)
                layer = other._writable()
                self._while_stopped(lambda upper: layer.copy_from(upper, over_former=bool(self._former)))
            other._launch_if_possible()
        except BaseException:
            other.close()
            raise
        return other

    def _launch_if_possible(self) -> None:
        """Start a shell. Where the agent's files prevent it, the next command shows that: copying them has worked."""
        with contextlib.suppress(SandboxBrokenError):
            self._launch()

    def _save_state(self) -> None:
        """Let bash save its state to the writable layer; without a bash that does so, the last saved one remains."""
        self._require_started()
        if self._shell is not None:
            try:
                self._shell.save_state(self.spec.limits.turn_timeout_s)
            finally:
                self._drop_ended_shell()

    def _while_stopped(self, copy: Callable[[Path], None]) -> None:
        """Copy the writable layer while the processes inside are stopped. If they cannot be stopped, they are ended."""
        self._has_stopped = True
        try:
            if self._shell is not None and not _stop_all(self._shell):
                self._shell.end()
                self._drop_shell()
            copy(self._writable().path / "upper")
        finally:
            self._go_on()

    def _go_on(self) -> None:
        """Let the processes inside go on."""
        if self._shell is not None:
            for pid in self._shell.processes():
                _signal(pid, signal.SIGCONT)
        self._has_stopped = False

    def interrupt(self) -> None:
        """See `api.Sandbox.interrupt`."""
        if self._directory is not None:
            with contextlib.suppress(SandboxError):  # the supervisor is gone, and with it what it ran
                supervisor().send({"do": "end", "id": self._directory.path.name})

    def close(self) -> None:
        """See `api.Sandbox.close`; the supervisor does the work while the caller continues."""
        if self._closed:
            return
        self._closed = True
        if self._owner != os.getpid():
            return  # a fork of the owner: the sandbox belongs to the parent
        if self._endpoint is not None:
            self._endpoint.close()
        if self._imported is not None:
            release(self._imported, 0 if self._shell is None else self._shell.first_process)
        self._drop_shell()
        former, self._former = self._former, ()
        for layer in former:
            layer.directory.release()
        if self._directory is not None and not self._directory.release():  # others need a former layer of it
            clean_up({"do": "end", "id": self._directory.path.name})
            if self._layer is not None:
                self._layer.remove()

    def __del__(self) -> None:
        """Have what it still holds closed, where its user has forgotten it."""
        if self.__dict__.get("_directory") is not None and not self._closed:
            self._note_unclosed(self)


def _stop_all(shell: Shell) -> bool:
    """Stop all processes of a shell's container; False if they start others, or go on, as fast as they are stopped."""
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    stopped: set[int] = set()
    looks = 0  # since one found a process running: a list of processes may lack one that is just being started
    while time.monotonic() < deadline:
        running = [pid for pid in shell.processes() if pid not in stopped or not _is_stopped(pid)]
        for pid in running:
            _signal(pid, signal.SIGSTOP)
        stopped.update(running)
        looks = 0 if running else looks + 1
        if looks == _LOOKS:
            return True
    return False


def _is_stopped(pid: int) -> bool:
    """Whether no thread of a process that was sent SIGSTOP goes on."""
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] in _RUNNING:
                    return False
    except (FileNotFoundError, ProcessLookupError):  # a thread has ended
        return not os.path.exists(f"/proc/{pid}")
    return True


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended
        os.kill(pid, number)
