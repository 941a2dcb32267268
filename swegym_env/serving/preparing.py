"""From a request to a started sandbox, and what of this machine a request may name.

A client with the token may run commands in sandboxes, and with network in a task's set-up. That gives no access to this
machine's files: images and repositories are named by address, and by path only in the folder that the operator allows.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from swegym_env.agent.tools import Bundle, ToolSet, load_bundle
from swegym_env.errors import ConfigurationError
from swegym_env.languages.determinism import with_determinism
from swegym_env.prepare import LocalWorkspace, add_tools, prepare_locally
from swegym_env.sandbox import Limits, Sandbox, SandboxSpec, start_sandbox
from swegym_env.sandbox.images import resolve_image
from swegym_env.sandbox.layers import LayerStore
from swegym_env.serving.ceilings import Ceilings
from swegym_env.serving.requests import Create, PackedBundle
from swegym_env.tasks.adapters import task_from_row
from swegym_env.tasks.task import Task

__all__ = ["Rules"]

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
_ADDRESS = re.compile(r"(https?|ssh|git)://[^\s]+")
_REGISTRIES = ("docker://", "oras://", "library://")


@dataclass(frozen=True)
class Rules:
    """How this machine prepares sandboxes, and what a request may name.

    Attributes:
        ceilings: the most that a request may ask for.
        backend: of its sandboxes.
        repos: the directory of clones, see `repo.repositories`; None: repositories are fetched from their origin.
        images: a folder whose images may be named by path; None: no image may be named by path.
    """

    ceilings: Ceilings
    backend: str = "auto"
    repos: str | None = None
    images: Path | None = None

    def start(self, message: Create) -> tuple[Sandbox, LocalWorkspace | None]:
        """The started sandbox that a request describes, and the workspace of its task, if it is for one.

        Raises:
            ConfigurationError: the request names what it may not, or cannot be understood.
            InfrastructureError: it could not be built or started.
        """
        limits = Limits(**message.limits.model_dump())
        self.ceilings.check_limits(limits)
        self.ceilings.check("turn_timeout_s", message.turn_timeout_s, "timeout")
        tools = ToolSet(True, tuple(_unpacked(packed) for packed in message.bundles))
        if message.task is not None:
            workspace = prepare_locally(
                self.task(message.task),
                tools=tools,
                backend=self.backend,
                repos=self.repos,
                limits=limits,
                turn_timeout_s=message.turn_timeout_s,
                deterministic=message.deterministic,
                port=message.port,
            )
            return workspace.start(), workspace
        self.check_image(message.image)
        spec = SandboxSpec(
            image=message.image,
            workdir=message.workdir,
            env=dict(message.env),
            path=tuple(message.path),
            port=message.port,
            limits=limits,
        )
        if message.deterministic:
            spec = with_determinism(spec)
        env = {"SWEGYM_TEST_COMMAND": "", "SWEGYM_TURN_TIMEOUT_S": f"{message.turn_timeout_s:g}"}
        return start_sandbox(add_tools(spec, tools, env=env, backend=self.backend), backend=self.backend), None

    def task(self, row: dict[str, Any]) -> Task:
        """The task of a row. Raises ConfigurationError: it is malformed, or names what it may not."""
        task = task_from_row(row)
        self.check_image(task.image)
        self.ceilings.check("test_timeout_s", task.test_timeout_s, "timeout")
        if task.repository and not _ADDRESS.fullmatch(task.repository):
            raise ConfigurationError(
                f"repository: expected an address such as https://…, got {task.repository[:200]!r}"
            )
        if not task.files and (not _REPOSITORY.fullmatch(task.repo) or ".." in task.repo):
            raise ConfigurationError(f"repo: expected owner/name, got {task.repo[:200]!r}")
        return task

    def check_image(self, image: str) -> None:
        """Raises ConfigurationError where a request may not name this image."""
        if image == "host" or image.startswith(_REGISTRIES):
            return
        if self.images is not None and Path(image).is_absolute():
            place = Path(image).resolve()
            if place.is_relative_to(self.images.resolve()) and place.exists():
                return
        allowed = "" if self.images is None else f", or a path in {self.images}"
        raise ConfigurationError(f"image: expected 'host' or an address (docker://…){allowed}, got {image[:200]!r}")

    def pull(self, image: str) -> None:
        """Pull or build an image ahead of its first use. Raises ConfigurationError, ImageError."""
        self.check_image(image)
        resolve_image(image)


def _unpacked(packed: PackedBundle) -> Bundle:
    """The bundle as a folder of this machine, published once under the digest of its content."""
    content = packed.model_dump()
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    root = LayerStore().get_or_build(("bundle", digest), lambda place: _write(packed, place / packed.name))
    return load_bundle(root / packed.name)


def _write(packed: PackedBundle, folder: Path) -> None:
    for name, file in packed.files.items():
        path = PurePosixPath(name)
        if path.is_absolute() or not path.parts or ".." in path.parts:
            raise ConfigurationError(f"bundle {packed.name}: {name!r} is not a path inside a folder")
        target = folder / path
        try:
            content = base64.b64decode(file.content, validate=True)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        except ValueError as error:  # invalid base64, or a name that no file can have
            raise ConfigurationError(f"bundle {packed.name}: {name!r} cannot be unpacked: {error}") from error
        target.chmod(0o755 if file.runs else 0o644)
