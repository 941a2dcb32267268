"""Adapter for NeMo Gym: a sandbox provider, which NeMo Gym finds by the entry point of this package.

    sandbox:                      # what an agent's `sandbox_provider: sandbox` names
      swegym: {dataset: mini}

With `dataset`, a sandbox is that of the task `instance_id` in the metadata or provider options of the `SandboxSpec`.
Without `dataset`, it is made from the spec's image. To grade the work in a task's sandbox, download `VERDICT` from it.

What the machine breaks is a `SandboxCreateError` or an `InfrastructureError`, and never the result of a command.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import posixpath
import shlex
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from nemo_gym.sandbox import SandboxCreateError, SandboxExecResult, SandboxHandle, SandboxSpec, SandboxStatus

from swegym_env.adapters.workbench import OneCaller, SplitOutput, Workbench, subshell, tasks_of
from swegym_env.errors import ConfigurationError, InfrastructureError, SandboxError
from swegym_env.sandbox import Limits, Sandbox, start_sandbox
from swegym_env.sandbox import SandboxSpec as OwnSpec

__all__ = ["VERDICT", "SwegymProvider"]

VERDICT = "/swegym/verdict.json"
"""What `download` makes of this path is not a file of the sandbox; see `SwegymProvider.download_file`."""
_MIB, _GIB = 1 << 20, 1 << 30  # bytes
_MOST_S = 24 * 3600.0  # of a command without a limit of its own
_NO_EXIT_CODE = 125  # as in the providers of NeMo Gym
_LOG = logging.getLogger(__name__)
_Found = TypeVar("_Found")


class _Held:
    """A started sandbox, and its one caller."""

    def __init__(self, make: Callable[[], Workbench | Sandbox]) -> None:
        self._make = make
        self._caller = OneCaller(lambda: self.sandbox)
        self._split = SplitOutput()
        self.bench: Workbench | None = None
        self.sandbox: Sandbox | None = None
        self.status = SandboxStatus.STARTING

    async def start(self) -> None:
        def start() -> None:
            made = self._make()
            self.bench, self.sandbox = (made, made.sandbox) if isinstance(made, Workbench) else (None, made)

        try:
            await self._caller.call(start)
        except BaseException:
            self._finish(patience_s=0)  # if the call was cancelled, the start still runs
            raise
        self.status = SandboxStatus.RUNNING

    async def call(self, use: Callable[[Sandbox], _Found]) -> _Found:
        """Use the sandbox. Raises InfrastructureError: it fails, or is closed."""

        def call() -> _Found:
            if self.sandbox is None:
                raise SandboxError("the sandbox is closed")
            return use(self.sandbox)

        try:
            return await self._caller.call(call)
        except InfrastructureError:
            if self.status is SandboxStatus.RUNNING:
                self.status = SandboxStatus.ERROR
            raise

    async def close(self) -> None:
        self.status = SandboxStatus.STOPPED
        await asyncio.to_thread(self._finish)

    def _finish(self, patience_s: float = math.inf) -> None:
        self._caller.finish(self._close, patience_s=patience_s)

    def _close(self) -> None:
        if self.sandbox is not None:
            self.sandbox.close()
            self.sandbox = None

    def run(self, sandbox: Sandbox, line: str, timeout_s: float) -> SandboxExecResult:
        """Run a line with its two outputs apart; bytes that are no UTF-8 are replaced."""
        done, errors = self._split.run(sandbox, line, timeout_s=timeout_s)
        if done.timed_out:
            return SandboxExecResult(
                done.output, f"{errors}the command timed out after {timeout_s:g} s", _NO_EXIT_CODE, "timeout"
            )
        return SandboxExecResult(done.output, errors, done.exit_code)


class SwegymProvider:
    """A `SandboxProvider` of NeMo Gym.

    Args:
        dataset: as `tasks.datasets.load_tasks` takes it; None: sandboxes are made of images.
        split: of the dataset.
        sandbox: a back end, see `sandbox.open_sandbox`.
        repos: source of git repositories, see `prepare`.
        network: of sandboxes made of images; a task has none.

    Raises:
        ConfigurationError: a setting has no effect beside or without `dataset`.
    """

    name = "swegym"

    def __init__(
        self,
        *,
        dataset: str | None = None,
        split: str | None = None,
        sandbox: str = "auto",
        repos: str | None = None,
        network: bool = False,
    ) -> None:
        useless = ["network"] if dataset and network else []
        useless += [] if dataset else [name for name, value in (("split", split), ("repos", repos)) if value]
        if useless:
            raise ConfigurationError(f"provider swegym: no effect here: {', '.join(useless)} (dataset={dataset!r})")
        self._dataset, self._split, self._backend, self._repos = dataset, split, sandbox, repos
        self._network = network

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        """Start a sandbox; its processors, memory and disk are limited to the spec's resources.

        Raises:
            SandboxCreateError: the sandbox cannot be started, or the spec asks for something unsupported.
        """
        try:
            held = _Held(self._maker(spec))
            await held.start()
            handle = SandboxHandle(f"swegym-{id(held):x}", self.name, held)
            if spec.workdir:
                directory = shlex.quote(spec.workdir)
                await held.call(lambda sandbox: sandbox.run(f"mkdir -p {directory}; cd {directory}"))
        except (ConfigurationError, InfrastructureError) as error:
            raise SandboxCreateError(f"{type(error).__name__}: {error}") from error
        return handle

    def _maker(self, spec: SandboxSpec) -> Callable[[], Workbench | Sandbox]:
        resources, options = spec.resources, dict(spec.provider_options)
        instance = options.pop("instance_id", spec.metadata.get("instance_id"))
        asked = {"gpu": resources.gpu, "entrypoint": spec.entrypoint, "ports": getattr(spec, "ports", None)}
        refused = [name for name, value in asked.items() if value] + sorted(options)
        if refused:
            raise ConfigurationError(f"a sandbox of swegym has no {', '.join(refused)}")
        if spec.ttl_s is not None:
            _LOG.warning("ttl_s has no effect: a sandbox of swegym ends with the process that started it")
        given = {
            "cpus": resources.cpu,
            "memory_bytes": resources.memory_mib and resources.memory_mib * _MIB,
            "disk_bytes": resources.disk_gib and resources.disk_gib * _GIB,
        }
        limits = replace(Limits(), **{name: value for name, value in given.items() if value})
        if self._dataset is None:
            if not spec.image:
                raise ConfigurationError("provider swegym: neither `dataset` in its block nor an image in the spec")
            own = OwnSpec(spec.image, workdir=spec.workdir or "/", env=spec.env, network=self._network, limits=limits)
            return partial(start_sandbox, own, backend=self._backend)
        if instance is None:
            raise ConfigurationError('provider swegym: "instance_id" is not in the metadata of the spec')
        task = tasks_of(self._dataset, self._split)[instance]
        return partial(Workbench, task, backend=self._backend, repos=self._repos, env=spec.env, limits=limits)

    async def exec(
        self,
        handle: SandboxHandle,
        command: str,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_s: float | None = None,
        user: str | int | None = None,
    ) -> SandboxExecResult:
        """Run a command for bash in a subshell. There is one user, who also answers to root.

        Raises:
            InfrastructureError: the machine failed.
            ValueError: another user.
        """
        held: _Held = handle.raw

        def run(sandbox: Sandbox) -> SandboxExecResult:
            if user not in (None, "root", 0) and str(user) not in sandbox.run("id -un; id -u").output.split():
                raise ValueError(f"a sandbox of swegym has one user, and cannot execute as {user!r}")
            line = subshell(command, cwd=cwd or sandbox.spec.workdir, env=env)
            return held.run(sandbox, line, timeout_s or _MOST_S)

        return await held.call(run)

    async def upload_file(self, handle: SandboxHandle, source_path: Path, target_path: str) -> None:
        """Write a file into the sandbox, with its mode. Raises InfrastructureError: it cannot be written."""
        content, mode = source_path.read_bytes(), source_path.stat().st_mode & 0o777
        await handle.raw.call(lambda sandbox: sandbox.write(target_path, content, mode=mode))

    async def download_file(self, handle: SandboxHandle, source_path: str, target_path: Path) -> None:
        """Copy a file out of the sandbox; `VERDICT`: grade the work in it, and write the outcome as JSON.

        The outcome has `reward`, `resolved`, `fail_to_pass`, `pass_to_pass` and `failure_reason`.

        Raises:
            InfrastructureError: the machine failed; then nothing is written.
            ConfigurationError: a verdict on a sandbox without a task.
        """
        held: _Held = handle.raw

        def verdict(_: Sandbox) -> bytes:
            if held.bench is None:
                raise ConfigurationError(f"{VERDICT}: this sandbox has no task. Try: `dataset` in the provider's block")
            outcome = held.bench.verdict()
            if not outcome.pop("valid"):
                raise InfrastructureError(outcome["failure_reason"])
            return json.dumps(outcome).encode()

        # Normalised, so that no other spelling of VERDICT reads a file that the agent made.
        path = posixpath.normpath(f"/{source_path.lstrip('/')}")
        content = await held.call(verdict if path == VERDICT else lambda sandbox: sandbox.read(source_path))
        target_path.parent.mkdir(parents=True, exist_ok=True)
        target_path.write_bytes(content)

    async def status(self, handle: SandboxHandle) -> SandboxStatus:
        """RUNNING, STOPPED, or ERROR after a failure of the machine."""
        return handle.raw.status

    async def close(self, handle: SandboxHandle) -> None:
        """End the command that runs, and remove the sandbox. Idempotent; the end of the process does the same."""
        await handle.raw.close()

    async def aclose(self) -> None:
        """Nothing is left to close."""
