"""Our sandboxes as an environment of Harbor, for its own command and agents.

    harbor run -p TASKS -a oracle --env swegym_env.adapters.harbor:SwegymEnvironment

A command is a subshell of one shell. When Harbor brings its tests, the sandbox is replaced by a fresh one on the files
that the agent left (see `harbor.state`): nothing of the agent's processes is there when the tests run. A failure of the
machine is an exception, which ends the trial without a reward.
"""

from __future__ import annotations

import asyncio
import io
import shlex
import tarfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities

from swegym_env.adapters.workbench import OneCaller
from swegym_env.errors import SandboxError
from swegym_env.harbor.image import as_root, build_image
from swegym_env.harbor.state import Protect, copied_state, limits_of, put_folder
from swegym_env.harbor.tasks import HarborTask, composed
from swegym_env.sandbox import Sandbox, SandboxSpec, start_sandbox
from swegym_env.sandbox.local import LocalSandbox

__all__ = ["SwegymEnvironment"]

_MIB = 1 << 20
_TIMEOUT_S = 24 * 3600.0  # Harbor limits its phases itself
_PACKED = "/.swegym/packed.tar"
_TESTS = "/tests"


class SwegymEnvironment(BaseEnvironment):  # type: ignore[misc]  # the peer is not installed where types are checked
    """A task's sandbox as an environment of Harbor.

    Args:
        sandbox: a back end of this machine, see `sandbox.open_sandbox` (`--ek sandbox=namespace`).
        protect: see `harbor.state` (`--ek protect=none`).
    """

    def __init__(self, *args: Any, sandbox: str = "auto", protect: Protect = "system", **kwargs: Any) -> None:
        self._backend, self._protect = sandbox, protect
        self._sandbox: Sandbox | None = None
        self._spec: SandboxSpec | None = None
        self._caller = OneCaller(lambda: self._sandbox)
        self._held = ExitStack()
        super().__init__(*args, **kwargs)

    @staticmethod
    def type() -> str:
        """The name of this kind of environment."""
        return "swegym"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """Network is there or not; there is no list of allowed hosts and no GPU."""
        return EnvironmentCapabilities(disable_internet=True)

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        """Processors and memory are limited, not reserved."""
        return EnvironmentResourceCapabilities(cpu_limit=True, memory_limit=True)

    def _validate_definition(self) -> None:
        if not (self.environment_dir / "Dockerfile").is_file():
            raise FileNotFoundError(f"{self.environment_dir}: no Dockerfile")
        composed(self.environment_dir.parent)

    def _task(self) -> HarborTask:
        config, compose = self.task_env_config, composed(self.environment_dir.parent)
        return HarborTask(
            instance_id=self.environment_name,
            folder=self.environment_dir.parent,
            instruction="",
            network=not self._network_disabled,
            workdir=config.workdir or compose.get("workdir") or "",
            env={**compose.get("env", {}), **self._startup_env()},
            cpus=config.cpus,
            memory_bytes=config.memory_mb and config.memory_mb * _MIB,
            disk_bytes=config.storage_mb and config.storage_mb * _MIB,
            build_timeout_s=config.build_timeout_sec,
        )

    async def start(self, force_build: bool) -> None:
        """Build the layers, unless they are there, and start a sandbox; `force_build` changes nothing."""

        def begin() -> None:
            task = self._task()
            built = build_image(task, backend=self._backend)
            self._spec = built.spec(limits_of(task), network=task.network, env=task.env)
            self._begin(self._spec)

        await self._caller.call(begin)
        await self._upload_environment_dir_after_start()

    async def stop(self, delete: bool) -> None:
        """Remove the sandbox and what it held."""
        caller, self._caller = self._caller, OneCaller(lambda: self._sandbox)
        await asyncio.to_thread(caller.finish, self._end)

    def _end(self) -> None:
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None
        self._held.close()

    def _begin(self, spec: SandboxSpec) -> None:
        """Start a sandbox with the directories that Harbor expects. Raises SandboxError."""
        self._sandbox = start_sandbox(spec, backend=self._backend)
        made = self._sandbox.run("mkdir -p /logs/agent /logs/verifier /logs/artifacts && chmod 777 /logs/*")
        if made.exit_code:
            raise SandboxError(f"{self.environment_name}: /logs cannot be made: {made.output.strip()[-200:]}")

    def _live(self) -> Sandbox:
        if self._sandbox is None:
            raise SandboxError("the environment was not started, or is stopped")
        return self._sandbox

    def _begin_tests(self) -> None:
        """Replace the sandbox by a fresh one on the files that the agent left."""
        sandbox, spec, task = self._live(), self._spec, self._task()
        assert spec is not None and isinstance(sandbox, LocalSandbox)
        built = build_image(task, backend=self._backend)
        layers, set_aside = self._held.enter_context(copied_state(sandbox, built, spec.limits, self._protect))
        if set_aside:
            self.logger.info("changes that are not tested: %s", ", ".join(set_aside[:20]))
        sandbox.close()
        self._begin(replace(spec, layers=(*spec.layers, *layers)))

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a command in a subshell; its error output is in `stdout`. There is one user, who seems to be root."""
        exports = "".join(
            f"export {name}={shlex.quote(value)}; " for name, value in (self._merge_env(env) or {}).items()
        )
        place = f"cd -- {shlex.quote(cwd)} && " if cwd else ""
        line = f"( {place}{{ {exports}{as_root(['bash', '-c', command])}; }} )"
        result = await self._caller.call(lambda: self._live().run(line, timeout_s=timeout_sec or _TIMEOUT_S))
        if result.timed_out:
            raise asyncio.TimeoutError(f"the command timed out after {timeout_sec} s")
        return ExecResult(stdout=result.output, stderr=None, return_code=result.exit_code)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Write a file into the sandbox."""
        content, mode = Path(source_path).read_bytes(), Path(source_path).stat().st_mode & 0o777
        await self._caller.call(lambda: self._live().write(target_path, content, mode=mode))

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Write a folder into the sandbox; before the tests, a fresh sandbox takes the place of the agent's."""

        def upload() -> None:
            if str(target_dir).rstrip("/") == _TESTS and Path(source_dir).name == "tests":
                self._begin_tests()
            self._live().run(f"mkdir -p {shlex.quote(target_dir)}")
            put_folder(self._live(), Path(source_dir), target_dir)

        await self._caller.call(upload)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy a file out of the sandbox."""
        content = await self._caller.call(lambda: self._live().read(source_path))
        Path(target_path).parent.mkdir(parents=True, exist_ok=True)
        Path(target_path).write_bytes(content)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy a folder out of the sandbox, regular files and links within it alone."""

        def download() -> None:
            sandbox, source = self._live(), shlex.quote(source_dir)
            result = sandbox.run(f"( tar -cf {_PACKED} -C {source} . )")
            if result.exit_code:
                raise FileNotFoundError(f"{source_dir}: {result.output.strip()[-200:]}")
            with tarfile.open(fileobj=io.BytesIO(sandbox.read(_PACKED))) as tar:
                for member in tar:
                    if member.isreg() or member.isdir() or member.issym():
                        tar.extract(member, target_dir, filter="data")

        Path(target_dir).mkdir(parents=True, exist_ok=True)
        await self._caller.call(download)
