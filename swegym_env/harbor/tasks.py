"""Harbor tasks: folders with `task.toml`, `instruction.md`, `environment/`, `tests/test.sh` and `solution/solve.sh`.

The format is that of Harbor's `TaskConfig` 1.4. A file of Docker Compose is read where it describes one container that
waits: its variables, its directory and its limits. What no sandbox of this machine can do is refused in one line:
several steps, further services, GPUs, Windows, lists of allowed hosts, a container of the verifier's own.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from swegym_env.errors import ConfigurationError, TaskFormatError, UnknownTaskError
from swegym_env.paths import expand
from swegym_env.tasks.task import Task, TaskSet

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["HarborTask", "composed", "is_harbor_task", "load_harbor_tasks", "tree_files"]

_TEMPLATE = re.compile(r"\$\{([A-Za-z_]\w*)(?::-([^}]*))?\}")
_OF_HARBOR = re.compile(r"\$\{(HOST_\w*LOGS\w*|HOST_\w*PATH)\}:")  # the places of logs, which sandboxes have
_COMPOSE = frozenset(
    {"build", "image", "container_name", "command", "environment", "deploy", "volumes", "working_dir", "tty",
     "stdin_open", "init", "pull_policy", "platform"}
)  # fmt: skip
_MIB = 1 << 20


@dataclass(frozen=True)
class HarborTask:
    """One task folder.

    Attributes:
        instance_id: the folder's name.
        folder: absolute.
        instruction: what the agent reads.
        network: whether agent and tests have the machine's own network, loopback included.
        workdir: where commands begin; empty: the Dockerfile's WORKDIR.
        env, verifier_env, solution_env: variables of all commands, of the tests, of the solution.
        cpus, memory_bytes, disk_bytes: limits; None: the defaults.
        build_timeout_s, agent_timeout_s, verifier_timeout_s: seconds; None: no limit of the task's own.
        digest: of every file of the folder.
    """

    instance_id: str
    folder: Path
    instruction: str
    network: bool = False
    workdir: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    verifier_env: Mapping[str, str] = field(default_factory=dict)
    solution_env: Mapping[str, str] = field(default_factory=dict)
    cpus: float | None = None
    memory_bytes: int | None = None
    disk_bytes: int | None = None
    build_timeout_s: float = 600.0
    agent_timeout_s: float | None = None
    verifier_timeout_s: float = 600.0
    digest: str = ""

    def as_task(self) -> Task:
        """What prompts, rewards and recordings see of it: there is no repository and no patch."""
        return Task(
            instance_id=self.instance_id,
            repo=f"harbor/{self.instance_id}",
            base_commit=self.digest,
            problem_statement=self.instruction,
            patch="",
            test_timeout_s=self.verifier_timeout_s,
        )


def is_harbor_task(folder: Path) -> bool:
    """Whether a folder is a Harbor task."""
    return (folder / "task.toml").is_file()


def load_harbor_tasks(place: str | os.PathLike[str], *, network: bool = False) -> TaskSet[HarborTask]:
    """The tasks in a folder, or the one task that the folder is, sorted by name.

    Args:
        network: let agent and tests have the machine's network where their task does not refuse it. In Harbor a task
            has network if it does not say otherwise; here whoever loads it must say so too.

    Tasks that are malformed, or ask for what no sandbox here has, are left out where others can be played; one warning
    names the first of them, and `TaskSet.skipped` all.

    Raises:
        UnknownTaskError: there is none.
        TaskFormatError: no task can be played; why not the first.
    """
    folder = expand(place).resolve()
    found = [folder] if is_harbor_task(folder) else sorted(path.parent for path in folder.glob("*/task.toml"))
    if not found and any(any(folder.glob(pattern)) for pattern in ("task.yaml", "*/task.yaml")):
        raise UnknownTaskError(
            f"{place}: tasks of Terminal-Bench 1 (task.yaml), expected task.toml. "
            f"Try: harbor tasks migrate -i {place} -o FOLDER"
        )
    if not found:
        raise UnknownTaskError(f"{place}: no Harbor task: expected a folder with task.toml, or folders with one each")
    tasks: list[HarborTask] = []
    skipped: list[TaskFormatError] = []
    for path in found:
        try:
            tasks.append(_read(path, allowed=network))
        except TaskFormatError as error:
            skipped.append(error)
    if not tasks:
        raise skipped[0]
    if skipped:
        warnings.warn(f"{place}: skipped {len(skipped)} of {len(found)} tasks, the first: {skipped[0]}", stacklevel=2)
    return TaskSet(tasks, name=str(place), skipped=[str(error) for error in skipped])


def tree_files(folder: Path) -> list[Path]:
    """Every file and link below `folder`, sorted; directories only where they are empty."""
    found = []
    for place, names, files in os.walk(folder):
        found += [Path(place, name) for name in files]
        found += [Path(place, name) for name in names if Path(place, name).is_symlink()]
        if not names and not files:
            found.append(Path(place))
    return sorted(found)


def _read(folder: Path, *, allowed: bool) -> HarborTask:
    where = folder / "task.toml"
    try:
        config = tomllib.loads(where.read_text(encoding="utf-8"))
        instruction = (folder / "instruction.md").read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise TaskFormatError(f"{where}: {error}") from error
    environment, verifier = _table(config, "environment", where), _table(config, "verifier", where)
    _refuse(config, environment, verifier, folder)
    compose = composed(folder)
    if not (folder / "tests/test.sh").is_file():
        raise TaskFormatError(f"{folder}: expected tests/test.sh")
    if not (folder / "environment/Dockerfile").is_file():
        raise TaskFormatError(f"{folder}: expected environment/Dockerfile")
    network = environment.get("network_mode")
    if network is None:
        network = "no-network" if environment.get("allow_internet") is False else "public"
    return HarborTask(
        instance_id=folder.name,
        folder=folder,
        instruction=instruction,
        network=allowed and network == "public",
        workdir=str(environment.get("workdir") or compose.get("workdir") or ""),
        env={**compose.get("env", {}), **_variables(environment, where)},
        verifier_env=_variables(verifier, where),
        solution_env=_variables(_table(config, "solution", where), where),
        cpus=_number(environment, "cpus", where) or _number(compose, "cpus", where),
        memory_bytes=_size(environment, "memory", where) or _size(compose, "memory", where),
        disk_bytes=_size(environment, "storage", where),
        build_timeout_s=_number(environment, "build_timeout_sec", where) or 600.0,
        agent_timeout_s=_number(_table(config, "agent", where), "timeout_sec", where),
        verifier_timeout_s=_number(verifier, "timeout_sec", where) or 600.0,
        digest=_digest(folder),
    )


def _refuse(config: Mapping[str, Any], environment: Mapping[str, Any], verifier: Mapping[str, Any], at: Path) -> None:
    """Raise TaskFormatError for what no sandbox of this machine has."""
    reasons = {
        "several steps (`steps`)": config.get("steps"),
        "GPUs": environment.get("gpus"),
        "a TPU": environment.get("tpu"),
        "Windows": str(environment.get("os", "linux")).lower() != "linux",
        "a list of allowed hosts": environment.get("network_mode") == "allowlist",
        "a container of the verifier's own": verifier.get("environment")
        or verifier.get("environment_mode") == "separate",
    }
    for what, asked in reasons.items():
        if asked:
            raise TaskFormatError(f"{at}: needs {what}, which sandboxes here do not have")


def composed(folder: Path) -> dict[str, Any]:
    """What a file of Docker Compose in `folder/environment` says of the task's container.

    Returns:
        `env`, `workdir`, and of `cpus` and `memory` what is given; empty without such a file.
    Raises:
        TaskFormatError: it describes more than one container of the Dockerfile that waits.
    """
    places = (folder / "environment" / name for name in ("docker-compose.yaml", "docker-compose.yml"))
    where = next((place for place in places if place.is_file()), None)
    if where is None:
        return {}
    try:
        services = yaml.safe_load(where.read_text(encoding="utf-8"))["services"]
        [(name, main)] = services.items()
        limits = ((main.get("deploy") or {}).get("resources") or {}).get("limits") or {}
        build = main.get("build") or {}
        build = build if isinstance(build, dict) else {"context": build}
        environment = main.get("environment") or {}
        pairs = environment if isinstance(environment, dict) else dict(each.split("=", 1) for each in environment)
        command = main.get("command") or "sleep infinity"
        waits = re.search(r"\bsleep infinity$", command if isinstance(command, str) else " ".join(command))
        mounts = [str(mount) for mount in main.get("volumes") or () if not _OF_HARBOR.match(str(mount))]
        context = os.path.normpath(_TEMPLATE.sub(".", str(build.get("context", "."))))
    except (yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError) as error:
        why = " ".join(str(error).split())
        raise TaskFormatError(f"{where}: expected one service that waits: {type(error).__name__}: {why}") from error
    unknown = sorted(set(main) - _COMPOSE) + mounts + sorted({"args", "target"} & set(build))
    if unknown or not waits or context != "." or build.get("dockerfile", "Dockerfile") != "Dockerfile":
        what = ", ".join(unknown) or (f"command {command!r}" if not waits else f"build {build!r}")
        raise TaskFormatError(f"{where}: service {name}: needs {what}, which sandboxes here do not have")
    return {
        "env": {str(key): _TEMPLATE.sub(_or_empty, str(value)) for key, value in pairs.items()},
        "workdir": main.get("working_dir"),
        # `${CPUS}` and `${MEMORY}` are Harbor's names for the values of task.toml.
        **{key: value for key, value in limits.items() if not str(value).startswith("${")},
    }


def _or_empty(match: re.Match[str]) -> str:
    """The value of a variable in a file of Docker Compose, where it may be unset."""
    return os.environ.get(match[1], match[2] or "")


def _table(values: Mapping[str, Any], name: str, where: Path) -> Mapping[str, Any]:
    found = values.get(name) or {}
    if not isinstance(found, dict):
        raise TaskFormatError(f"{where}: {name}: expected a table, got {found!r}")
    return found


def _number(values: Mapping[str, Any], name: str, where: Path) -> float | None:
    found = values.get(name)
    if found is None:
        return None
    if isinstance(found, str) and re.fullmatch(r"\d+(\.\d+)?", found):  # as Docker Compose writes it
        found = float(found)
    if isinstance(found, bool) or not isinstance(found, int | float) or not found > 0:
        raise TaskFormatError(f"{where}: {name}: expected a positive number, got {found!r}")
    return float(found)


def _size(values: Mapping[str, Any], name: str, where: Path) -> int | None:
    """Bytes of `NAME_mb`, or of the older `NAME`, such as "2G"."""
    megabytes = _number(values, f"{name}_mb", where)
    if megabytes is not None:
        return int(megabytes * _MIB)
    text = values.get(name)
    if text is None:
        return None
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)([KMG])", str(text).strip().upper())
    if parts is None:
        raise TaskFormatError(f"{where}: {name}: expected a size such as 2G, got {text!r}")
    return int(float(parts[1]) * {"K": 1 << 10, "M": _MIB, "G": 1 << 30}[parts[2]])


def _variables(table: Mapping[str, Any], where: Path) -> dict[str, str]:
    """The table `env`, with `${NAME}` and `${NAME:-default}` from this process's variables."""

    def value(match: re.Match[str]) -> str:
        found = os.environ.get(match[1], match[2])
        if found is None:
            raise ConfigurationError(f"{where}: env: the variable {match[1]} is not set")
        return found

    return {name: _TEMPLATE.sub(value, str(text)) for name, text in _table(table, "env", where).items()}


def _digest(folder: Path) -> str:
    total = hashlib.sha256()
    for path in tree_files(folder):
        if path.is_symlink():
            content = b"link " + os.fsencode(os.readlink(path))
        elif path.is_file():
            content = b"file %o " % (path.stat().st_mode & 0o111) + hashlib.sha256(path.read_bytes()).digest()
        else:
            content = b"directory"
        total.update(os.fsencode(path.relative_to(folder)) + b"\0" + content + b"\0")
    return total.hexdigest()[:40]
