"""Grading the final state of a sandbox: what `tests/test.sh` says of it in a fresh sandbox.

What is written is copied as layers, and a new sandbox is made of the task's layers and these: none of the agent's
processes, shell functions and variables is in it. Tests and logs are the owner's: `/tests`, `/logs` and `/solution` of
the agent are left out. With `protect="system"` the programs and libraries of the image are the image's again: what
replaced, removed or hides one of them is left out, and so is what every shell or Python loads. `protect="none"` grades
the state as it is, as Harbor does.

What cannot be protected: the tests run what the agent made, with the rights of the sandbox's one user. A program of the
agent that the tests start can write the reward while they run.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from swegym_env.errors import ConfigurationError, GradingError, SandboxBrokenError, SandboxError
from swegym_env.grading.verdict import Verdict
from swegym_env.harbor.image import Built, as_root, build_image
from swegym_env.harbor.protection import protect_image, remove_owners
from swegym_env.harbor.tasks import HarborTask, tree_files
from swegym_env.sandbox import Limits, Sandbox, SandboxSpec, start_sandbox
from swegym_env.sandbox.client import clean_up, supervisor
from swegym_env.sandbox.layers import LayerStore
from swegym_env.sandbox.leases import lease_directory
from swegym_env.sandbox.local import LocalSandbox
from swegym_env.sandbox.writable import run_dir_for

__all__ = ["Protect", "StateVerdict", "copied_state", "grade_state", "limits_of", "put_folder", "solve", "start_task"]

Protect = Literal["system", "none"]

_REWARDS = ("/logs/verifier/reward.json", "/logs/verifier/reward.txt")
_MOST_REWARD_BYTES = 1 << 16
_MOST_LOG_BYTES = 1 << 20


@dataclass(frozen=True)
class StateVerdict(Verdict):
    """A verdict with the rewards that the tests wrote.

    Attributes:
        rewards: name → number, as in `reward.json`; the one of `reward.txt` is named "reward".
    """

    rewards: Mapping[str, float] = field(default_factory=dict)

    @property
    def reward(self) -> float:
        """The one named "reward", else the mean of all; 0 without any."""
        return self.rewards.get("reward", sum(self.rewards.values()) / len(self.rewards) if self.rewards else 0.0)


def limits_of(task: HarborTask, limits: Limits | None = None) -> Limits:
    """The limits of a task's sandboxes: those given, else the defaults with what `task.toml` asks for."""
    asked = {"cpus": task.cpus, "memory_bytes": task.memory_bytes, "disk_bytes": task.disk_bytes}
    return limits or Limits.of({name: value for name, value in asked.items() if value is not None})


def start_task(
    task: HarborTask, *, backend: str = "auto", limits: Limits | None = None, store: LayerStore | None = None
) -> Sandbox:
    """A started sandbox of a task, as its agent finds it. Raises what `build_image` and `start_sandbox` raise."""
    built = build_image(task, backend=backend, store=store)
    return start_sandbox(built.spec(limits_of(task, limits), network=task.network, env=task.env), backend=backend)


def put_folder(sandbox: Sandbox, folder: Path, target: str) -> None:
    """Write the files of a folder into a sandbox."""
    for path in tree_files(folder):
        inside = f"{target}/{path.relative_to(folder).as_posix()}"
        if path.is_file():
            sandbox.write(inside, path.read_bytes(), mode=0o755 if os.access(path, os.X_OK) else 0o644)


def solve(task: HarborTask, sandbox: Sandbox, *, timeout_s: float | None = None) -> int:
    """Run the task's own solution; its exit code. Raises ConfigurationError if the task has none."""
    if not (task.folder / "solution/solve.sh").is_file():
        raise ConfigurationError(f"{task.instance_id}: no solution/solve.sh")
    put_folder(sandbox, task.folder / "solution", "/solution")
    exports = "".join(f"export {name}={shlex.quote(value)}; " for name, value in task.solution_env.items())
    command = as_root(["bash", "/solution/solve.sh"])
    return sandbox.run(f"( {exports}{command} )", timeout_s=timeout_s or task.agent_timeout_s or 600.0).exit_code


def grade_state(
    task: HarborTask,
    sandbox: Sandbox,
    *,
    backend: str = "auto",
    protect: Protect = "system",
    limits: Limits | None = None,
    store: LayerStore | None = None,
) -> StateVerdict:
    """The verdict on the state of `sandbox`, which goes on unharmed.

    Args:
        protect: see the module.
    Raises:
        InfrastructureError: the machine failed, or the tests write no reward without the agent's work either.
    """
    if not isinstance(sandbox, LocalSandbox):
        raise ConfigurationError(f"{sandbox.backend}: the final state is graded on this machine only")
    began = time.monotonic()
    built = build_image(task, backend=backend, store=store)
    limits = limits_of(task, limits)
    spec = built.spec(limits, network=task.network, env={**task.env, **task.verifier_env})
    with copied_state(sandbox, built, limits, protect) as (layers, set_aside):
        written = replace(spec, layers=(*spec.layers, *layers))
        ran = _run_tests(task, written, backend, fault_of_files=True, control=spec)
    if not ran.rewards and ran.starved:
        raise GradingError(f"{task.instance_id}: tests/test.sh had no processor for {task.verifier_timeout_s:g} s")
    if not ran.rewards and not ran.broken:
        control = _run_tests(task, spec, backend)
        if not control.rewards:
            raise GradingError(
                f"{task.instance_id}: tests/test.sh writes no reward on the untouched image either: {control.reason}"
            )
    verdict = StateVerdict(
        instance_id=task.instance_id,
        resolved=False,
        failure_reason=ran.reason,
        set_aside=set_aside,
        exit_code=ran.exit_code,
        log=ran.log,
        duration_s=time.monotonic() - began,
        test_duration_s=ran.duration_s,
        rewards=ran.rewards,
    )
    return replace(verdict, resolved=bool(ran.rewards) and verdict.reward >= 1.0)


@contextmanager
def copied_state(
    sandbox: LocalSandbox, built: Built, limits: Limits, protect: Protect
) -> Iterator[tuple[tuple[Path, ...], tuple[str, ...]]]:
    """What was written in a sandbox, as layers over the task's, and the paths that are left out; removed at the end.

    Raises:
        SandboxError: it cannot be copied.
    """
    directory = lease_directory("state", supervisor().pid, run_dir_for(limits))
    try:
        directory.chmod(0o755)
        layers = sandbox.copy_layers(directory)
        remove_owners(layers)
        yield tuple(layers), protect_image(layers, built) if protect == "system" else ()
    finally:
        clean_up({"do": "remove", "directory": str(directory)})


@dataclass(frozen=True)
class _Ran:
    """What a run of the tests gave."""

    rewards: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    log: str = ""
    exit_code: int | None = None
    starved: bool = False
    broken: bool = False
    duration_s: float = 0.0


def _run_tests(
    task: HarborTask,
    spec: SandboxSpec,
    backend: str,
    *,
    fault_of_files: bool = False,
    control: SandboxSpec | None = None,
) -> _Ran:
    """Run `tests/test.sh` in a new sandbox and read its reward.

    A sandbox that does not start is the fault of the agent's files if one without them, `control`, starts.
    """
    try:
        sandbox = start_sandbox(spec, backend=backend)
    except SandboxError as error:
        if not fault_of_files or control is None:
            raise
        start_sandbox(control, backend=backend).close()
        return _Ran(reason=f"no sandbox starts on the final state: {error}", broken=True)
    try:
        put_folder(sandbox, task.folder / "tests", "/tests")
        sandbox.write("/logs/verifier/test-stdout.txt", b"")
        script = "chmod +x /tests/test.sh; mkdir -p /logs/agent /logs/artifacts; "
        run = as_root(["/tests/test.sh"])
        result = sandbox.run(
            f"( {script}{run} )", timeout_s=task.verifier_timeout_s, output_limit_bytes=_MOST_LOG_BYTES
        )
        rewards, reason = _read_rewards(sandbox)
    except SandboxBrokenError as error:
        return _Ran(reason=str(error), broken=True)
    finally:
        sandbox.close()
    if result.timed_out:
        rewards, reason = {}, f"tests/test.sh did not end within {task.verifier_timeout_s:g} s"
    return _Ran(rewards, reason, result.output, result.exit_code, result.starved, duration_s=result.duration_s)


def _read_rewards(sandbox: Sandbox) -> tuple[dict[str, float], str]:
    """The rewards of `reward.json`, else of `reward.txt`; else nothing, and why."""
    for path in _REWARDS:
        try:
            text = sandbox.read(path)[:_MOST_REWARD_BYTES].decode("utf-8", "replace")
        except OSError:
            continue
        try:
            found: Any = json.loads(text) if path.endswith(".json") else float(text)
        except ValueError:
            return {}, f"{path}: not a reward: {text[:80]!r}"
        values = found if isinstance(found, dict) else {"reward": found}
        if not values or not all(_is_number(value) for value in values.values()):
            return {}, f"{path}: expected finite numbers, got {text[:80]!r}"
        return {str(name): float(value) for name, value in values.items()}, ""
    return {}, "tests/test.sh wrote no reward"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
