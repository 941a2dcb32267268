"""Workspaces: from a task, tools and limits to the sandbox of an agent and the patch of its work.

This is the only place that builds a task's layers. On a back end of this machine the layers are built here and the
patch is captured from the writable layer (`LocalWorkspace`). On a server, the request that creates the sandbox carries
the task and the tools by content; the server calls the same `prepare_locally` and takes the patch (`RemoteWorkspace`).
Users of a `Workspace` (`env`) see no difference.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from swegym_env.agent.tools import PROGRAMS, Bundle, ToolSet
from swegym_env.errors import ConfigurationError, LayerError, RepositoryError
from swegym_env.languages import Recipe, language_of
from swegym_env.languages.determinism import with_determinism
from swegym_env.languages.grammars import SYNTAX, syntax_layers
from swegym_env.languages.package_index import package_index
from swegym_env.languages.setup_layers import Setup, build_setup, export_changes
from swegym_env.long_work import long_work
from swegym_env.repo.capture import capture_patch
from swegym_env.repo.git import ANY_OWNER
from swegym_env.repo.repositories import (
    files_layer,
    image_environment,
    image_repository_layer,
    repository_layer,
    source_problem,
)
from swegym_env.sandbox import Imports, Limits, Sandbox, SandboxSpec, start_sandbox
from swegym_env.sandbox.backends import find_backend, make_backend
from swegym_env.sandbox.identity import own
from swegym_env.sandbox.layers import LayerStore, Provenance, system_of
from swegym_env.tasks.hidden_tests import command_without_hidden_tests
from swegym_env.tasks.task import Task, task_to_row

__all__ = [
    "LocalWorkspace",
    "RemoteWorkspace",
    "Workspace",
    "add_tools",
    "check_backend",
    "prepare",
    "prepare_locally",
]

_NO_TOOLS = ToolSet(shell=True)
_TOOLS_FOLDER = "opt/swegym"
_INSTALL_TIMEOUT_S = 1800.0
_NOT_INSTALLED = ("tmp", "var/tmp", "home", ".swegym", "root", "run", "dev", "proc", "sys", "etc", "testbed")


class Workspace(Protocol):
    """A task that is ready for an agent.

    Attributes:
        spec: what its sandboxes are made of.
    """

    @property
    def spec(self) -> SandboxSpec:
        """See the attributes above."""

    def start(self) -> Sandbox:
        """A started sandbox. Raises InfrastructureError; then nothing is left of it."""

    def patch(self, sandbox: Sandbox, *, fresh: bool = False) -> str:
        """The changes of the repository in `sandbox`, as a git diff; see `repo.capture.capture_patch`."""


@dataclass(frozen=True)
class LocalWorkspace:
    """A task whose layers are on this machine; see `Workspace`.

    Attributes:
        task: the task.
        spec: what its sandboxes are made of.
        base: the repository at the base commit, on the host; read-only. Patches are taken against it.
        test_command: command from the table of set-up commands that runs the tests of the test patch; empty if the
            table does not have the repository.
        backend: of its sandboxes.
    """

    task: Task
    spec: SandboxSpec
    base: Path
    test_command: str = ""
    backend: str = "auto"

    def start(self) -> Sandbox:
        """See `Workspace.start`."""
        return start_sandbox(self.spec, backend=self.backend)

    def patch(self, sandbox: Sandbox, *, fresh: bool = False) -> str:
        """See `Workspace.patch`."""
        return capture_patch(sandbox, self.base, fresh=fresh)


@dataclass(frozen=True)
class RemoteWorkspace:
    """A task that a server prepares; see `Workspace`.

    Attributes:
        spec: image and limits of its sandboxes; the server adds the rest.
        url: address of the server or pool.
        payload: what the server prepares, as JSON.
    """

    spec: SandboxSpec
    url: str
    payload: Mapping[str, Any]

    def start(self) -> Sandbox:
        """See `Workspace.start`. With each result of a command the server sends the patch: a turn is one request."""
        from swegym_env.sandbox.remote.connection import connect
        from swegym_env.sandbox.remote.sandbox import RemoteSandbox

        sandbox = RemoteSandbox(self.spec, connect(self.url), create=self.payload, with_command={"diff": True})
        sandbox.start()
        return sandbox

    def patch(self, sandbox: Sandbox, *, fresh: bool = False) -> str:
        """See `Workspace.patch`."""
        from swegym_env.sandbox.remote.sandbox import RemoteSandbox

        assert isinstance(sandbox, RemoteSandbox)  # made by `start`
        if fresh or "patch" not in sandbox.reply:
            sandbox.reply = sandbox.call("/container/diff", {"fresh": fresh})
        return str(sandbox.reply["patch"])


def check_backend(backend: str, repos: str | os.PathLike[str] | None = None) -> None:
    """Check the name of a back end without starting it, and `repos`, which has no effect on a server.

    Raises:
        ConfigurationError: there is no such back end, it is a server, which has its own repositories, or `repos` is
            neither a directory nor a URL.
    """
    if backend != "auto" and make_backend(backend).server is not None and repos is not None:
        raise ConfigurationError(f"repos: {backend} has its own repositories. Try: swegym serve --repos {repos}")
    if problem := source_problem(repos):
        raise ConfigurationError(problem)


def prepare(
    task: Task,
    *,
    tools: ToolSet = _NO_TOOLS,
    backend: str = "auto",
    repos: str | os.PathLike[str] | None = None,
    limits: Limits | None = None,
    turn_timeout_s: float = 60.0,
    deterministic: bool = False,
    port: int | None = None,
    imports: Imports | None = None,
) -> Workspace:
    """The workspace of `task` on a back end of this machine or on a server.

    Args:
        tools: programs for the agent.
        backend: see `open_sandbox`.
        repos: where git repositories come from, see `repository_layer`.
        limits: limits of the sandbox; None: the defaults.
        turn_timeout_s: seconds of one command, for the tools.
        deterministic: see `languages.determinism`.
        port: port of the sandbox's loopback interface on which the owner answers, see `SandboxSpec`.
        imports: a program of the tools that is imported once, see `SandboxSpec`; a server does not do so.
    Raises:
        ConfigurationError: the back end does not work here, or `repos` would have no effect.
        RepositoryError, LayerError, SandboxError, ImageError: see there.
    """
    server = find_backend(backend).server
    if server is None:
        return prepare_locally(
            task,
            tools=tools,
            backend=backend,
            repos=repos,
            limits=limits,
            turn_timeout_s=turn_timeout_s,
            deterministic=deterministic,
            port=port,
            imports=imports,
        )
    check_backend(backend, repos)
    payload = {
        "task": task_to_row(task),
        "bundles": [{"name": bundle.name, "files": _files(bundle.path, bundle.digest)} for bundle in tools.bundles],
        "turn_timeout_s": turn_timeout_s,
        "deterministic": deterministic,
    }
    spec = SandboxSpec(image=task.image, limits=limits or Limits(), port=port)
    return RemoteWorkspace(spec, server.url, payload)


def prepare_locally(
    task: Task,
    *,
    tools: ToolSet = _NO_TOOLS,
    backend: str = "auto",
    repos: str | os.PathLike[str] | None = None,
    limits: Limits | None = None,
    turn_timeout_s: float = 60.0,
    deterministic: bool = False,
    port: int | None = None,
    imports: Imports | None = None,
    store: LayerStore | None = None,
    install: bool = True,
) -> LocalWorkspace:
    """Build the layers of `task` on this machine, or find them in the cache, in less than a millisecond.

    The arguments and errors are those of `prepare`, and:

    Args:
        backend: a back end of this machine; set-up commands run in its sandboxes too, with network.
        store: of the layers; None: the one in `work_dir()`.
        install: whether to add the set-up layers of the repository.
    """
    if problem := source_problem(repos):  # also where every layer is cached: a wrong folder is noticed at once
        raise RepositoryError(problem)
    store = store or LayerStore()
    recipe = language_of(task).find_recipe(task)
    if install:
        _require_installation(task, recipe)
    source = task.repository or None if repos is None else repos
    with long_work(task.instance_id, "setting up its environment, which is kept"):
        repository, setup = _task_layers(task, recipe if install else None, source, store, backend)
    spec = SandboxSpec(
        image=task.image,
        layers=(*setup.layers, repository),
        workdir="/testbed",
        env={**ANY_OWNER, **setup.env},
        port=port,
        imports=imports,
        limits=limits or Limits(),
    )
    if deterministic:
        spec = with_determinism(spec)
    test_command = recipe.tests_of(task) if recipe else ""
    env = {
        "SWEGYM_TEST_COMMAND": command_of_all_tests(task, recipe, repository / "testbed"),
        "SWEGYM_TURN_TIMEOUT_S": f"{turn_timeout_s:g}",
    }
    if tools.bundles and language_of(task).grammars and (syntax := syntax_layers(store)):
        spec = dataclasses.replace(spec, layers=(*syntax, *spec.layers))
        env["SWEGYM_SYNTAX"] = SYNTAX
    with long_work(task.instance_id, "installing the agent's tools, which are kept"):
        spec = add_tools(spec, tools, env=env, backend=backend, store=store)
    return LocalWorkspace(task, spec, repository / "testbed", test_command, backend)


def _task_layers(
    task: Task, recipe: Recipe | None, source: str | os.PathLike[str] | None, store: LayerStore, backend: str
) -> tuple[Path, Setup]:
    """The layer with the repository, and its set-up layers: none without a recipe, or if the image has everything."""
    from_image = None
    if task.files:
        repository = files_layer(task.files, store)
    else:
        from_image = image_repository_layer(
            task.image, task.base_commit, place=task.image_repository, patch=task.base_patch, store=store
        )
        repository = from_image or repository_layer(
            task.repo, task.base_commit, source=source, patch=task.base_patch, store=store
        )
    setup = Setup((), {})
    if from_image:
        setup = Setup((), image_environment(task.image))  # the image has everything installed
    elif recipe is not None:
        setup = build_setup(task, recipe, repository=repository, source=source, store=store, backend=backend)
    return repository, setup


def command_of_all_tests(task: Task, recipe: Recipe | None, repository: Path) -> str:
    """The test commands that an agent may know: they do not name the files of hidden tests.

    Args:
        repository: its files at the base commit, on this machine.
    """
    if task.test_command:
        return command_without_hidden_tests(task, repository)
    return recipe.tests_of(dataclasses.replace(task, test_patch="")) if recipe else ""


def _require_installation(task: Task, recipe: Recipe | None) -> None:
    """Raise LayerError if a task made for an image would run on the bare host: its verdicts would mean nothing."""
    if recipe is not None or task.image != "host" or task.files or not (task.official_image or task.eval_script):
        return
    what = f"{task.repo} {task.version}".rstrip()
    image = task.official_image or "that its eval_script was written for"
    if unreached := language_of(task).unreached:
        needed, last = f"{unreached}, with commands for {what} in `setup`", "or `image` or `setup` in the row"
    else:
        needed, last = f"set-up commands for {what}", "`image` in the row, or an entry in $SWEGYM_SETUP_COMMANDS"
    raise LayerError(
        f"{task.instance_id}: needs the image {image}, or {needed}: nothing here installs it. "
        f"Try: official_images=True of load_tasks, --official of swegym grade, {last}"
    )


def add_tools(
    spec: SandboxSpec,
    tools: ToolSet,
    *,
    env: Mapping[str, str] | None = None,
    backend: str = "auto",
    store: LayerStore | None = None,
) -> SandboxSpec:
    """A sandbox like `spec` with the programs of `tools`, first on the shell's PATH.

    Args:
        env: environment variables for the tools.
        backend: back end of the sandbox that runs `install.sh`.
        store: of the layers; None: the one in `work_dir()`.
    Raises:
        LayerError: the layer cannot be made, or an `install.sh` failed; the text has the end of its output.
    """
    if not tools.bundles:
        return spec
    store = store or LayerStore()
    key = [f"{bundle.name}={bundle.digest}" for bundle in tools.bundles]
    layers = [store.get_or_build(("tools", *key), lambda layer: _copy_tools(tools, layer))]
    installing = [bundle for bundle in tools.bundles if bundle.install]
    if installing:
        named = ("installed-tools", spec.image, *key)
        below = layers[0]
        layers.append(
            store.get_or_build(
                named,
                lambda layer: _install_tools(installing, spec.image, below, backend, layer),
                Provenance((below.name,), system_of(spec.image)),
            )
        )
    # At the bottom: the task's files cover those of the tools, and its repository stays the last layer.
    return dataclasses.replace(
        spec,
        layers=(*layers, *spec.layers),
        path=(PROGRAMS, *spec.path),
        env={**spec.env, **(env or {})},
    )


def _copy_tools(tools: ToolSet, layer: Path) -> None:
    """Copy the bundles' folders, and link their programs in one directory."""
    programs = layer / PROGRAMS.lstrip("/")
    programs.mkdir(parents=True)
    for bundle in tools.bundles:
        place = layer / _TOOLS_FOLDER / "tools" / bundle.name
        shutil.copytree(bundle.path, place, ignore=shutil.ignore_patterns("__pycache__"))
        for tool in bundle.tools:
            (place / "bin" / tool.name).chmod(0o755)
            (programs / tool.name).symlink_to(f"../tools/{bundle.name}/bin/{tool.name}")
    for path in (layer / "opt", *(layer / "opt").rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        own(path)


def _install_tools(bundles: list[Bundle], image: str, below: Path, backend: str, layer: Path) -> None:
    """Run each `install.sh` in its folder, with network, and keep what they changed."""
    index = package_index()
    limits = Limits(turn_timeout_s=_INSTALL_TIMEOUT_S, cpus=float(os.cpu_count() or 1), processes=4096)
    spec = SandboxSpec(
        image=image, layers=(below,), workdir="/tmp", env=index.env, binds=index.binds, network=True, limits=limits
    )
    sandbox = start_sandbox(spec, backend=backend)
    try:
        for bundle in bundles:
            folder = f"/{_TOOLS_FOLDER}/tools/{bundle.name}"
            result = sandbox.run(f"cd {folder} && (set -e\n{bundle.install}\n)", timeout_s=_INSTALL_TIMEOUT_S)
            if result.exit_code != 0:
                output = " ".join(result.output.split())[-300:] or "no output"
                what = bundle.path / "install.sh" if bundle.tools else f"{bundle.path}: install"
                raise LayerError(f"{what} exited with {result.exit_code}: {output}")
        binds = (path.strip("/") for path in index.binds.values())
        export_changes(sandbox, layer, leave_out=(*_NOT_INSTALLED, *binds))
    finally:
        sandbox.close()


@functools.lru_cache(maxsize=64)
def _files(folder: Path, _digest: str) -> dict[str, dict[str, Any]]:
    """Path → content in base64 and whether it is a program; read once for each state of the folder."""
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            content = base64.b64encode(path.read_bytes()).decode()
            files[path.relative_to(folder).as_posix()] = {"content": content, "runs": os.access(path, os.X_OK)}
    return files
