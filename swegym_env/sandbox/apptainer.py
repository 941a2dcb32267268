"""The back end "apptainer": sandboxes on the root of a container of Apptainer, one for each image."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from swegym_env.errors import SandboxError
from swegym_env.paths import large_run_dir, run_dir, work_dir
from swegym_env.sandbox.api import SandboxSpec
from swegym_env.sandbox.client import EndingError, disabled_features
from swegym_env.sandbox.filters import program, runtime_profile
from swegym_env.sandbox.host_image import host_image
from swegym_env.sandbox.image_container import container_root
from swegym_env.sandbox.linux.container import MASKED, READ_ONLY
from swegym_env.sandbox.local import HOSTNAME, LocalBackend, known_problem

__all__ = ["ApptainerBackend"]

_SEPARATORS = frozenset(",:")
_OLDEST = (1, 1)
"""The first version that makes sandboxes for ordinary users without a set-uid program."""
# No `--pid` or `--net`: the supervisor has made these namespaces. The first process is its own and not the agent's
# shell, and what sockets may hold is limited.
_OPTIONS = (
    "--quiet",
    "exec",
    "--contain",
    "--ipc",
    "--cleanenv",
    "--no-eval",
    "--no-privs",
    "--userns",
    "--writable",
    "--hostname=" + HOSTNAME,
    "--no-mount=home,tmp,sys,dev,devpts,cwd,bind-paths",
)


_programs: dict[str, str] = {}
"""$PATH → the program found there: every sandbox asks for it, and each directory to look in costs a system call."""


def _program() -> str | None:
    path = os.environ.get("PATH", os.defpath)
    program = _programs.get(path)
    if program is None or not os.access(program, os.X_OK):
        program = shutil.which("apptainer")
        if program is not None:
            _programs[path] = program
    return program


class ApptainerBackend(LocalBackend):
    """Apptainer opens an image once, in a container that stays up, and each sandbox is started on that root.

    Where the container cannot be entered, Apptainer runs each sandbox on the layers that the supervisor mounts: one
    `apptainer exec` each, which takes about ten times as long to start.

    Args:
        name: of the back end in the registry.
        each: whether to run one `apptainer exec` a sandbox; None: where nothing else works.
    """

    remedy = "scripts/install_apptainer.sh, or sandbox 'namespace' or 'auto', which work without it"

    def __init__(self, name: str, *, each: bool | None = None) -> None:
        super().__init__(name)
        self._program = _program()
        self._each = each

    def missing(self) -> str:
        """See `LocalBackend.missing`."""
        if not self._program:
            return "no `apptainer` on PATH"
        for variable, place in (("RUNDIR", run_dir()), ("RUNDIR", large_run_dir()), ("WORKDIR", work_dir())):
            if _SEPARATORS.intersection(str(place)):  # of its options --bind and --security, which have no quotes
                return f"Apptainer takes no path with ',' or ':', got {place}. Try: another $SWEGYM_{variable}"
        return ""

    def version(self) -> tuple[object, ...]:
        """See `LocalBackend.version`."""
        if self._program is None:
            return ()
        installed = os.stat(self._program)
        return self._program, installed.st_mtime_ns, installed.st_size

    def explain(self, failure: str) -> str:
        """See `LocalBackend.explain`: an old version fails with messages that do not name the reason."""
        try:
            done = subprocess.run(
                [self._program or "apptainer", "--version"], capture_output=True, text=True, timeout=10, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return failure
        found = re.search(r"(\d+)\.(\d+)[\w.+-]*", done.stdout)
        if found is None or (int(found[1]), int(found[2])) >= _OLDEST:
            return failure
        return f"{self._program} is version {found[0]}, expected {'.'.join(map(str, _OLDEST))} or newer"

    def manner(self) -> str:
        """See `LocalBackend.manner`."""
        reason = self.why_each()
        return f"one `apptainer exec` a sandbox ({reason})" if reason else "one container an image stays up"

    def why_each(self) -> str:
        """Why each sandbox needs an `apptainer exec` here; empty where one container for each image stays up."""
        if self._each is not None:
            return "as asked for" if self._each else ""
        if "container" in disabled_features():
            return f"switched off by SWEGYM_WITHOUT={os.environ['SWEGYM_WITHOUT']}"
        trial = ApptainerBackend(self.name, each=False)
        return known_problem(f"{self.name}-container", self.version(), trial.try_now)

    def problem(self, *, fresh: bool = False) -> str:
        """See `backends.Backend.problem`: a container that works shows that Apptainer does."""
        missing = self.missing()
        return missing or (super().problem(fresh=fresh) if fresh or self.why_each() else "")

    def request(self, spec: SandboxSpec, directory: Path, command: Sequence[str]) -> dict[str, Any]:
        """See `LocalBackend.request`."""
        request = super().request(spec, directory, command)
        if self.why_each():
            return self._by_apptainer(request, directory)
        try:
            root = container_root(Path(request["layers"][0]), self.version(), partial(self._container, spec))
            return {**request, "image": root}
        except EndingError:
            raise
        except SandboxError as error:
            if self._each is not None:
                raise
            text = f"{spec.image}: {error}: its sandboxes take one `apptainer exec` each. Try: swegym doctor"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
            return self._by_apptainer(request, directory)

    def _container(self, spec: SandboxSpec, directory: Path, command: Sequence[str]) -> dict[str, Any]:
        """The request for the container of an image: the root is the image itself, which nothing can be written to."""
        request = super().request(SandboxSpec(image=spec.image), directory, command)
        image = request["layers"][0]
        request = self._by_apptainer(request, directory)
        return {**request, "layers": [], "layer": "", "binds": [*request["binds"], (image, str(directory / "root"))]}

    def _by_apptainer(self, request: dict[str, Any], directory: Path) -> dict[str, Any]:
        """The same request, so that Apptainer runs the command on a root that the supervisor has mounted."""
        staged: dict[str, list[tuple[str, str]]] = {"binds": [], "shared": []}
        options: list[str] = []
        for kind, stages in staged.items():
            for number, (source, place) in enumerate(request[kind]):
                stage = str(directory / "binds" / f"{kind}-{number}")
                stages.append((source, stage))
                options += ["--bind", f"{stage}:{place}:ro"]
        accounts = host_image() / "etc"  # Apptainer looks the sandbox's user up in /etc
        staged["binds"] += [(str(accounts / name), f"/etc/{name}") for name in ("passwd", "group")]
        # Apptainer refuses to bind from below /dev, where the run directory is, to another place in it.
        devices = f"/proc/self/root{directory / 'dev'}"
        options += ["--bind", f"{devices}:/dev"]
        options += ["--bind", f"{READ_ONLY}:{READ_ONLY}:ro"]
        for path in MASKED:
            nothing = directory / "empty" if os.path.isdir(path) else f"{devices}/null"
            options += ["--bind", f"{nothing}:{path}:ro"]
        if "seccomp" not in disabled_features():
            options += ["--security", f"seccomp:{runtime_profile()}"]
        command = [self._program, *_OPTIONS, *options, str(directory / "root"), *request["command"]]
        filtered = program(for_runtime=True)
        return {**request, **staged, "isolation": "command", "command": command, "filter": filtered}
