"""Agent programs: how one is installed and started. Ready ones by name, the user's own by a folder.

A folder::

    NAME/agent.yaml    how it is installed and started
    NAME/…             whatever else it needs: its code, its settings

`agent.yaml`::

    description: what it is
    install: |            # optional: shell commands, run once, with network, in the folder; what they write is kept
      python3 -m venv venv
      venv/bin/pip install my-agent==1.2
    command: |            # for bash, in the repository; the episode ends with it
      exec $SWEGYM_START "$SWEGYM_AGENT/venv/bin/my-agent" --task "$(cat "$SWEGYM_TASK")"
    environment:          # optional: more variables
      MY_AGENT_MODE: batch
    imports:              # optional: a program in Python that is imported once for all episodes
      program: venv/bin/my-agent
      modules: [my_agent] # optional: by default, what the first statements of the program import
      unless: [.env]      # optional: files that it reads before it imports some of these; with one, it imports anew

The command finds these variables: SWEGYM_AGENT (the folder inside), SWEGYM_TASK (a file with the issue), SWEGYM_MODEL
(a name for the model), and the addresses of the model: OPENAI_BASE_URL and OPENAI_API_BASE (with /v1),
ANTHROPIC_BASE_URL (without), OPENAI_API_KEY and ANTHROPIC_API_KEY (any text will do). SWEGYM_START, which is for the
shell only, stands in front of the program of `imports`: it is empty, or starts the program's imported copy, see
`sandbox.imported`.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from swegym_env.agent.tools import AGENT_FILE, Bundle, load_bundle
from swegym_env.arguments import CheckedArguments, nearest
from swegym_env.errors import ConfigurationError
from swegym_env.files import make_directory
from swegym_env.paths import expand
from swegym_env.programs.protocols.model import MODEL
from swegym_env.registry import resolve, with_installed
from swegym_env.sandbox import Imports
from swegym_env.sandbox.layers import LayerStore

__all__ = ["PORT", "TASK_FILE", "AgentSpec", "agent_names", "load_agent", "shipped_agents"]

PORT = 8390
"""Of the sandbox's loopback, where the model is asked."""

TASK_FILE = "/.swegym/task.md"
_INSTALLED = "/opt/swegym/tools"
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}")
_KEYS = ("description", "install", "command", "environment", "imports")


@dataclass(frozen=True)
class AgentSpec(CheckedArguments):
    """An agent program.

    Attributes:
        command: starts it, for bash; see the module.
        install: shell commands that install it, run once; empty where it needs none.
        environment: variables of the command.
        name: for layers, records and tables.
        description: for people.
        folder: its files; None: it has none.
        imports: a Python program that is imported once for all episodes: `program`, its path in the folder, and
            optionally `modules` and `unless`, see `sandbox.Imports`; None: none is.
    """

    command: str
    install: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    imports: Mapping[str, Any] | None = None
    name: str = "agent"
    description: str = ""
    folder: Path | None = None

    def __post_init__(self) -> None:
        if not self.command.strip():
            raise ConfigurationError(f"agent {self.name}: command: expected a shell command, got {self.command!r}")
        if not _NAME.fullmatch(self.name):
            raise ConfigurationError(f"agent: name: expected letters, digits, '.', '_' and '-', got {self.name!r}")
        if self.imports is not None:
            _check_imports(self.name, self.imports)
            # Nobody would start the imported copy, and the episode would not begin.
            if not re.search(r"\$\{?SWEGYM_START\b", self.command):
                raise ConfigurationError(f"agent {self.name}: imports: the command has to begin with $SWEGYM_START")

    def bundle(self) -> Bundle:
        """Its files and how they are installed. What has no folder gets one, which is kept in the store of layers."""
        if self.folder is not None:
            return load_bundle(self.folder)
        settings: dict[str, Any] = {
            "install": self.install,
            "command": self.command,
            "environment": dict(self.environment),
        }
        text = yaml.safe_dump(settings, sort_keys=True)
        digest = hashlib.sha256(f"{self.name}\n{text}".encode()).hexdigest()

        def write(place: Path) -> None:
            make_directory(place / self.name)
            (place / self.name / AGENT_FILE).write_text(text, encoding="utf-8")

        return load_bundle(LayerStore().get_or_build(("agent", digest), write) / self.name)

    def variables(self) -> dict[str, str]:
        """The variables of the command."""
        address = f"http://127.0.0.1:{PORT}"
        return {
            "OPENAI_BASE_URL": f"{address}/v1",
            "OPENAI_API_BASE": f"{address}/v1",
            "OPENAI_API_KEY": "swegym",
            "ANTHROPIC_BASE_URL": address,
            "ANTHROPIC_API_KEY": "swegym",
            "NO_PROXY": "127.0.0.1,localhost",
            "SWEGYM_AGENT": f"{_INSTALLED}/{self.name}",
            "SWEGYM_MODEL": MODEL,
            "SWEGYM_TASK": TASK_FILE,
            **self.environment,
        }

    def script(self, start: str = "") -> str:
        """What bash runs in the sandbox: the command with its variables, in the directory where the shell is.

        Args:
            start: the words in front of the program of `imports`, see `LocalSandbox.starts_imported`.
        """
        exports = " ".join(shlex.quote(f"{name}={value}") for name, value in self.variables().items())
        return f"export {exports}\nSWEGYM_START={shlex.quote(start)}\n{self.command}"

    def imported(self) -> Imports | None:
        """The program of `imports`, for a sandbox."""
        if self.imports is None:
            return None
        program = f"{_INSTALLED}/{self.name}/{self.imports['program']}"
        names = {key: tuple(self.imports.get(key) or ()) for key in ("modules", "unless")}
        return Imports(program, environment=self.variables(), **names)


def shipped_agents() -> dict[str, Path]:
    """Name → folder of the agents of this package."""
    return {path.parent.name: path.parent for path in sorted(Path(__file__).parent.glob(f"shipped/*/{AGENT_FILE}"))}


def agent_names() -> tuple[str, ...]:
    """The agents of this package, and those of installed packages (entry points "swegym_env.agents")."""
    return tuple(with_installed("swegym_env.agents", {name: name for name in shipped_agents()}))


def load_agent(given: str | os.PathLike[str] | AgentSpec | Mapping[str, Any]) -> AgentSpec:
    """An agent by name, by the path of its folder, or by the arguments of an `AgentSpec`.

    Raises:
        ConfigurationError: there is no such agent, or `agent.yaml` is malformed; the message names file and key.
    """
    if isinstance(given, AgentSpec):
        return given
    if isinstance(given, Mapping):
        return _from_mapping(given, "agent", ("name", *_KEYS))
    shipped = shipped_agents()
    installed = with_installed("swegym_env.agents", {name: name for name in shipped})
    if str(given) in installed.keys() - shipped.keys():  # of a folder, or an AgentSpec
        return load_agent(resolve(installed[str(given)], "agent"))
    path = shipped.get(str(given)) or expand(given).absolute()
    file = path / AGENT_FILE
    if not file.is_file():
        raise ConfigurationError(
            f"no agent {str(given)!r}{nearest(str(given), tuple(installed)) or ':'} "
            f"give {', '.join(installed)}, or a folder with an {AGENT_FILE}"
        )
    try:
        settings = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file}: cannot be read: {' '.join(str(error).split())}") from error
    return _from_mapping(settings, str(file), _KEYS, name=path.name, folder=path)


def _from_mapping(settings: Any, where: str, known: tuple[str, ...], **more: Any) -> AgentSpec:
    if not isinstance(settings, Mapping):
        raise ConfigurationError(f"{where}: expected keys and values, got {type(settings).__name__}")
    for key in settings:
        if key not in known:
            raise ConfigurationError(f"{where}: unknown key {key!r}; there are {', '.join(known)}")
    variables = settings.get("environment") or {}
    if not isinstance(variables, Mapping) or not all(re.fullmatch(r"[A-Za-z_]\w*", str(name)) for name in variables):
        raise ConfigurationError(f"{where}: environment: expected names and values of variables, got {variables!r}")
    others = ("environment", "imports")
    texts = {key: settings[key] for key in known if key not in others and settings.get(key) is not None}
    for key, value in texts.items():
        if not isinstance(value, str):
            raise ConfigurationError(f"{where}: {key}: expected text, got {value!r}")
    environment = {str(name): str(value) for name, value in variables.items()}
    if "command" not in texts:
        raise ConfigurationError(f"{where}: command: expected the shell command that starts the agent")
    return AgentSpec(environment=environment, imports=settings.get("imports"), **{**texts, **more})


def _check_imports(name: str, imports: Any) -> None:
    expected = "expected `program`, a path in the folder, and optionally `modules` and `unless`, lists of names"
    known = isinstance(imports, Mapping) and set(imports) <= {"program", "modules", "unless"}
    program = imports.get("program") if known else None
    lists = [imports.get(key) or [] for key in ("modules", "unless")] if known else []
    inside = isinstance(program, str) and program and not program.startswith("/") and ".." not in program.split("/")
    texts = all(isinstance(each, list | tuple) and all(isinstance(name, str) for name in each) for each in lists)
    if not inside or not texts:
        raise ConfigurationError(f"agent {name}: imports: {expected}, got {imports!r}")
