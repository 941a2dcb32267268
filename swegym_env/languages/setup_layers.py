"""Set-up layers: the files that installing a task adds, made once with network access and then shared read-only.

There are two layers, as installing has two costs. The environment holds everything that the repository needs and serves
all tasks of one version (`environment_setup_commit`). The installation holds what installing the base commit adds:
metadata, generated files under `/testbed`, sometimes another requirement.
"""

from __future__ import annotations

import dataclasses
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten

from swegym_env.errors import RepositoryError, SetUpError
from swegym_env.files import make_directory
from swegym_env.languages import Recipe
from swegym_env.languages.package_index import package_index
from swegym_env.repo.repositories import repository_layer, submodule_layer
from swegym_env.sandbox import Limits, Sandbox, SandboxSpec, open_sandbox
from swegym_env.sandbox.identity import own
from swegym_env.sandbox.layers import LayerStore, Provenance, system_of
from swegym_env.tasks.task import Task

__all__ = ["Setup", "build_setup", "export_changes"]

_STEP_TIMEOUT_S = 3600.0
_SETUP_LIMITS = Limits(
    turn_timeout_s=_STEP_TIMEOUT_S,
    memory_bytes=32 << 30,
    cpus=float(os.cpu_count() or 1),  # compilers; it happens once, before any episode
    processes=4096,
    file_size_bytes=8 << 30,
    disk_bytes=32 << 30,
    inodes=4_000_000,
    output_bytes=4 << 20,
)
_NOT_INSTALLED = ("tmp", "var/tmp", "home", ".swegym", "root", "run", "dev", "proc", "sys", "etc/ssl/certs")


@dataclass(frozen=True)
class Setup:
    """Attributes: layers: below the repository's, bottom first; env: variables of every sandbox of the task."""

    layers: tuple[Path, ...]
    env: Mapping[str, str]


def build_setup(
    task: Task,
    recipe: Recipe,
    *,
    repository: Path,
    source: str | os.PathLike[str] | None,
    store: LayerStore,
    backend: str,
) -> Setup:
    """The set-up layers of `task`, built unless this machine has them.

    Args:
        repository: the layer with the task's repository.
        source: where git repositories come from, see `repository_layer`.
    Raises:
        LayerError: the machine lacks the toolchain, or a command failed; the text has the last line of its output and
            the path of the whole log.
        RepositoryError, SandboxError, ImageError: see there.
    """
    plan = recipe.installation(task, store)
    key = [task.image, *plan.key, repr(sorted(plan.env.items()))]
    steps = [*plan.environment, *plan.repository]
    if not steps:
        return Setup(plan.layers, plan.env)

    modules = tuple(
        submodule_layer(task.repo, repository, path, source=source, store=store) for path in plan.submodules
    )
    plan = dataclasses.replace(plan, layers=(*plan.layers, *modules))

    def provenance(*below: Path) -> Provenance:
        return Provenance(tuple(layer.name for layer in below), system_of(task.image))

    if task.files or not task.environment_setup_commit:
        whole = store.get_or_build(
            ("setup", repository.name, *key),
            lambda layer: _install(task, steps, (*plan.layers, repository), plan.env, backend, store, layer),
            provenance(*plan.layers, repository),
        )
        return Setup((*plan.layers, whole), plan.env)
    # The repository at that commit is needed to build the environment, not to use one.
    wanted = ("environment", task.repo, task.environment_setup_commit, *key)
    environment = store.find(wanted, provenance(*plan.layers))
    if environment is None:
        foundation, commit = repository, task.base_commit
        try:
            foundation = repository_layer(task.repo, task.environment_setup_commit, source=source, store=store)
            commit = task.environment_setup_commit
        except RepositoryError:
            pass  # a clone that ends at the base commit, for example: the environment is made from that commit
        environment = store.get_or_build(
            ("environment", task.repo, commit, *key),
            lambda layer: _install(
                task, steps, (*plan.layers, foundation), plan.env, backend, store, layer, leave_out=("testbed",)
            ),
            provenance(*plan.layers, foundation),
        )
    lower = (*plan.layers, environment)
    installation = store.get_or_build(
        ("installation", environment.name, task.base_commit),
        lambda layer: _install(task, plan.repository, (*lower, repository), plan.env, backend, store, layer),
        provenance(*lower, repository),
    )
    return Setup((*lower, installation), plan.env)


def _install(
    task: Task,
    steps: Sequence[str],
    layers: tuple[Path, ...],
    env: Mapping[str, str],
    backend: str,
    store: LayerStore,
    target: Path,
    leave_out: Iterable[str] = (),
) -> None:
    """Run `steps` in a sandbox with network on `layers`, and copy what they changed into `target`."""
    index = package_index()
    layers = (_places_layer(index.binds, store), *layers)
    spec = SandboxSpec(
        image=task.image, layers=layers, env={**index.env, **env}, binds=index.binds, network=True, limits=_SETUP_LIMITS
    )
    sandbox = open_sandbox(spec, backend=backend)
    log: list[str] = []
    try:
        sandbox.start()
        if re.fullmatch(r"\d+(\.\d+)*", task.version):
            # versioneer, setuptools_scm and pbr read the version from a tag, which the cut history lacks. This tag is
            # not exported.
            sandbox.run(f"git -C /testbed tag v{task.version}")
        for step in steps:
            result = sandbox.run(f"cd /testbed && {step}", timeout_s=_STEP_TIMEOUT_S)
            log.append(f"$ {step}\n{result.output}\n")
            if result.exit_code != 0:
                place = store.root / ".logs" / f"{task.instance_id}-{secrets.token_hex(3)}.log"
                place.parent.mkdir(exist_ok=True)
                place.write_text("".join(log), encoding="utf-8", errors="replace")
                lines = [line.strip() for line in log[-1].splitlines() if line.strip()]
                errors = [line for line in lines if line.startswith(("ERROR", "error", "E:", "fatal"))] or lines
                raise SetUpError(
                    f"{task.instance_id}: set-up command {shorten(step, 100, placeholder=' …')!r} exited with "
                    f"{result.exit_code}: {errors[-1][:300].rstrip('.')}. "
                    f"The whole log: {place}"
                )
        export_changes(
            sandbox,
            target,
            leave_out=(*_NOT_INSTALLED, *(path.strip("/") for path in index.binds.values()), *leave_out),
        )
    finally:
        sandbox.close()


def _places_layer(binds: Mapping[str, str], store: LayerStore) -> Path:
    """A layer with an `/opt` that the sandbox's user can write, and a mount point for each of `binds`."""

    def make(layer: Path) -> None:
        _make_parents(layer / "opt")
        for source, inside in sorted(binds.items()):
            place = layer / inside.lstrip("/")
            _make_parents(place if os.path.isdir(source) else place.parent)
            if not place.exists():
                place.touch()
                own(place)

    described = [f"{inside}{'/' if os.path.isdir(source) else ''}" for source, inside in sorted(binds.items())]
    return store.get_or_build(("places", *described), make)


def export_changes(sandbox: Sandbox, target: Path, *, leave_out: Iterable[str] = ()) -> None:
    """Copy what a sandbox changed into the directory `target`: as a layer over the same layers it gives the same files.

    Args:
        leave_out: paths (relative to the root) that are not copied, with everything below them. Python's byte code and
            git's files below `testbed` are never copied.
    """
    excluded = tuple(leave_out)
    for change in sandbox.changes("/"):
        path = change.path
        if any(path == place or path.startswith(f"{place}/") for place in excluded):
            continue
        if path.startswith("testbed/") and ("/.git/" in path or "__pycache__" in path):
            continue
        place = target / path
        _make_parents(place.parent)
        source = change.host_path
        if source is None:
            if not path.startswith("testbed/"):  # a whiteout below its own layer hides nothing
                os.mknod(place, stat.S_IFCHR, os.makedev(0, 0))
            continue
        if os.path.lexists(place):
            place.unlink()  # a whiteout of something that was deleted here before
        if change.kind == "symlink":
            os.symlink(os.readlink(source), place)
        else:
            shutil.copy2(source, place, follow_symlinks=False)
        own(place)


def _make_parents(directory: Path) -> None:
    missing = []
    while not directory.exists():
        missing.append(directory)
        directory = directory.parent
    for place in reversed(missing):
        make_directory(place)
        own(place)
