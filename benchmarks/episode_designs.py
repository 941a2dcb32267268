"""Episodes as other designs play them, on the same tasks: copy or check out, apply the gold patch, take it, grade it.

Each design does as little as it can: a step is one command, and grading is one script that applies both patches and
runs the tests. Nothing is checked but the exit code of the tests: no proof, no limits, no exclusion of paths.

    apptainer exec      one `apptainer exec` a step on a copied working directory (mini-swe-agent, verifiers)
    apptainer instance  one `apptainer instance` an episode and one for its grading
    chroot              a checkout and a copied virtual environment an episode, a mount namespace, and one bash under
                        chroot, in which the work is graded too (SWE-MiniSandbox)
    bare                the tests alone, on the host, where both patches are applied already: the floor
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.env.peer_driver import FLAGS
from swegym_env.prepare import prepare_locally
from swegym_env.sandbox.host_image import host_binds, host_image
from swegym_env.sandbox.shell import ENVIRONMENT
from swegym_env.tasks.task import Task

__all__ = ["DESIGNS", "Design"]

_TAKE = "git add -A && git diff --cached"
_DIRECTORY = "/testbed"
_GIT = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
_VARIABLES = {**ENVIRONMENT, **_GIT}


class Design(ABC):
    """A way to play episodes.

    Args:
        place: an empty directory of its own.
        tasks: whose layers are on this machine.
    """

    def __init__(self, place: Path, tasks: list[Task]) -> None:
        self.place = place
        self.bases = {task.instance_id: prepare_locally(task).base for task in tasks}
        self._numbers = itertools.count()

    @abstractmethod
    def play(self, task: Task) -> None:
        """Play one episode and remove what it made. Raises RuntimeError where its tests fail."""

    def checkout(self, task: Task, name: str = "testbed") -> Path:
        """A new directory with a copy of the task's repository in it, called `name`."""
        parent = self.place / str(next(self._numbers))
        parent.mkdir()
        _run("cp", "-R", "--preserve=mode,timestamps,links", self.bases[task.instance_id], parent / name)
        return parent / name


def _run(*command: str | os.PathLike[str], text: str = "", **options: object) -> str:
    done = subprocess.run(
        list(map(str, command)),
        input=text,
        capture_output=True,
        text=True,
        check=False,
        **options,  # type: ignore[call-overload]
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]} exited with {done.returncode}: {done.stdout[-1000:]}{done.stderr[-1000:]}")
    return str(done.stdout)


def _apply(patch: str) -> str:
    return f"git apply --whitespace=nowarn <<'END_OF_PATCH'\n{patch}\nEND_OF_PATCH"


def _graded(task: Task, patch: str) -> str:
    """The script that applies what is graded and the test patch, and runs the tests."""
    parts = [_apply(part) for part in (patch, task.test_patch) if part]
    return "\n".join(["set -e", *parts, task.test_command])


class Bare(Design):
    """The tests alone."""

    def __init__(self, place: Path, tasks: list[Task]) -> None:
        super().__init__(place, tasks)
        self._repaired: dict[str, Path] = {}
        for task in tasks:
            directory = self.checkout(task)
            _run("bash", text=_graded(task, task.patch), cwd=directory, env=_VARIABLES)
            self._repaired[task.instance_id] = directory

    def play(self, task: Task) -> None:
        _run("bash", "-c", task.test_command, cwd=self._repaired[task.instance_id], env=_VARIABLES)


class _Apptainer(Design):
    """What both uses of Apptainer share: a root with the machine's programs."""

    def __init__(self, place: Path, tasks: list[Task]) -> None:
        super().__init__(place, tasks)
        self.root = place / "built"  # with the scripts that start instances
        shutil.copytree(host_image(), place / "root", symlinks=True)
        (place / "root" / "testbed").mkdir()
        _run("apptainer", "--quiet", "build", "--sandbox", self.root, place / "root")
        # Subordinate ids are needed for `--fakeroot`, which mini-swe-agent uses where it can.
        tried = subprocess.run(
            ["apptainer", "--quiet", "exec", *FLAGS, *self._binds(), str(self.root), "true"],
            check=False,
            capture_output=True,
        )
        self.flags = FLAGS if tried.returncode == 0 else FLAGS[:-1]

    def _binds(self) -> list[str]:
        return [word for source, target in host_binds().items() for word in ("--bind", f"{source}:{target}:ro")]

    def options(self, directory: Path) -> list[str]:
        variables = [
            word for name, value in _VARIABLES.items() if name != "HOME" for word in ("--env", f"{name}={value}")
        ]
        return [*self.flags, *self._binds(), *variables, "--bind", f"{directory}:{_DIRECTORY}"]


class ApptainerExec(_Apptainer):
    """One `apptainer exec` a step."""

    def play(self, task: Task) -> None:
        work, graded = self.checkout(task), self.checkout(task)
        try:
            self._step(work, _apply(task.patch))
            patch = self._step(work, _TAKE)
            self._step(graded, _graded(task, patch))
        finally:
            for directory in (work, graded):
                shutil.rmtree(directory.parent)

    def _step(self, directory: Path, script: str) -> str:
        options = [*self.options(directory), "--pwd", _DIRECTORY]
        return _run("apptainer", "--quiet", "exec", *options, self.root, "bash", "-c", script)


class ApptainerInstance(_Apptainer):
    """One instance an episode, and one for its grading."""

    def play(self, task: Task) -> None:
        with self._instance(task) as step:
            step(_apply(task.patch))
            patch = step(_TAKE)
        with self._instance(task) as step:
            step(_graded(task, patch))

    @contextlib.contextmanager
    def _instance(self, task: Task):  # type: ignore[no-untyped-def]
        directory = self.checkout(task)
        name = f"bench-{os.getpid()}-{directory.parent.name}"
        _run("apptainer", "--quiet", "instance", "start", *self.options(directory), self.root, name)
        try:
            command = ("apptainer", "--quiet", "exec", "--pwd", _DIRECTORY, f"instance://{name}", "bash", "-c")
            yield lambda script: _run(*command, script)
        finally:
            _run("apptainer", "--quiet", "instance", "stop", "-F", "-t", "0", name)
            shutil.rmtree(directory.parent)


class Chroot(Design):
    """A checkout, a virtual environment and a chroot an episode."""

    def __init__(self, place: Path, tasks: list[Task]) -> None:
        super().__init__(place, tasks)
        self._venv = place / "venv"
        _run("/usr/bin/python3", "-m", "venv", "--without-pip", self._venv)

    def play(self, task: Task) -> None:
        root = self.checkout(task).parent
        quoted = shlex.quote(str(root))
        try:
            _run("cp", "--archive", self._venv, root / "venv")
            for name in ("usr", "proc", "dev", "tmp", "etc"):
                (root / name).mkdir()
            binds = [f"mount --rbind {source} {quoted}{target}" for source, target in host_binds().items()]
            for name in ("bin", "sbin", "lib", "lib64"):
                if os.path.islink(f"/{name}"):
                    (root / name).symlink_to(os.readlink(f"/{name}"))
            binds += [f"mount -t proc proc {quoted}/proc", f"mount --rbind /dev {quoted}/dev"]
            script = "\n".join(["set -e", *binds, f"exec chroot {quoted} /bin/bash"])
            command = ["unshare", "--mount", *(["--map-root-user"] if os.geteuid() else []), "bash", "-c", script]
            environment = {**_VARIABLES, "PATH": f"/venv/bin:{ENVIRONMENT['PATH']}"}
            with subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=environment,
            ) as shell:
                _step_in(shell, f"cd {_DIRECTORY}\n{_apply(task.patch)}")
                _step_in(shell, _TAKE)
                _step_in(shell, f"(\n{_graded(task, '')}\n)")
                assert shell.stdin is not None
                shell.stdin.close()
        finally:
            shutil.rmtree(root)


def _step_in(shell: subprocess.Popen[str], command: str) -> str:
    """The output of a command in a bash that reads from a pipe; a step of SWE-ReX's shell, without its waits."""
    assert shell.stdin is not None and shell.stdout is not None
    shell.stdin.write(f"{command}\necho END-OF-STEP $?\n")
    shell.stdin.flush()
    output = []
    for line in shell.stdout:
        _, found, code = line.partition("END-OF-STEP ")
        if found:
            if int(code):
                raise RuntimeError(f"{command} exited with {code}: {''.join(output)[-1000:]}")
            return "".join(output)
        output.append(line)
    raise RuntimeError(f"{command}: its shell ended: {''.join(output)[-1000:]}")


DESIGNS: Mapping[str, Callable[[Path, list[Task]], Design]] = {
    "bare tests": Bare,
    "one apptainer exec a step": ApptainerExec,
    "one apptainer instance an episode": ApptainerInstance,
    "checkout, venv and chroot": Chroot,
}
