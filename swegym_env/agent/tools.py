"""Tools of an agent: bundles (folders of programs), and sets of them with or without the shell.

A bundle is a folder::

    NAME/config.yaml    describes the tools, for the model and for checking calls
    NAME/bin/…          the programs, in any language that the sandbox has
    NAME/install.sh     optional: runs once, with network, in the bundle's folder; its changes join the layer

`config.yaml`::

    description: purpose of the bundle
    tools:
      count:                          # bin/count
        description: Counts the lines of files.
        arguments:                    # see `Argument`
          - {name: paths, type: array, description: The files., required: true, place: position}
          - {name: blank, type: boolean, description: Count blank lines too.}
        example: {paths: [README.md]}

An argument with `place: position` is passed as a positional argument, in the order of the file; with `place: input` on
standard input; any other after the positions as `--name=value`, a true boolean as `--name`. (If a position begins with
a hyphen, the options come first, followed by `--`.)

A set is written as names: "bash" (the shell), shipped bundles, paths of your own, or sets (`TOOL_SETS`). `submit` is
always included.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import yaml

from swegym_env.agent.actions import Action, ActionFormat, Call, Command, Edits, Malformed, Submit, not_text
from swegym_env.agent.search_replace import write_blocks
from swegym_env.arguments import nearest, nearest_or_all
from swegym_env.errors import ConfigurationError
from swegym_env.paths import expand

__all__ = [
    "AGENT_FILE",
    "BASH_TOOL",
    "PROGRAMS",
    "SUBMIT_TOOL",
    "TOOL_SETS",
    "Argument",
    "Bundle",
    "Tool",
    "ToolSet",
    "load_bundle",
    "shell_command",
    "shipped_bundles",
    "tool_set",
    "tools_for",
]

TOOL_SETS: dict[str, tuple[str, ...]] = {
    "default": ("bash", "search", "view", "edit", "run_tests", "submit"),
    "debug": ("bash", "search", "view", "edit", "run_tests", "pdb", "submit"),
    "rewrite-only": ("view", "edit", "submit"),
}
AGENT_FILE = "agent.yaml"  # in the folder of an agent program, see `programs.spec`
PROGRAMS = "/opt/swegym/bin"  # directory in the sandbox with the programs of all bundles of a set

Place = Literal["option", "position", "input"]
_TYPES = ("string", "integer", "number", "boolean", "array")
_PLACES = ("option", "position", "input")
_WORD_BYTES = 100_000  # the kernel accepts 128 KiB for one argument of a program
_NEGATIVE = re.compile(r"-\d+")
_HEREDOC = re.compile(r"^([^\n]*?)[ \t]*<<[ \t]*(['\"]?)(\w+)\2[ \t]*\n")


@dataclass(frozen=True)
class Argument:
    """One argument of a tool.

    Attributes:
        name: as the model writes it; underscores become hyphens for the program.
        type: "string", "integer", "number", "boolean" or "array" (of strings).
        description: for the model.
        required: whether a call must include it.
        choices: the allowed values; empty for any.
        place: how it is passed to the program.
    """

    name: str
    type: str
    description: str
    required: bool = False
    choices: tuple[str, ...] = ()
    place: Place = "option"


@dataclass(frozen=True)
class Tool:
    """One program of a bundle.

    Attributes:
        name: of the program in `bin/`, and of the function.
        description: for the model.
        arguments: of the function.
        example: arguments of an example call, for the prompt.
        usage: how it is called in the shell, if that is not clear from the arguments.
    """

    name: str
    description: str
    arguments: tuple[Argument, ...] = ()
    example: Mapping[str, Any] | None = None
    usage: str = ""

    @property
    def schema(self) -> dict[str, Any]:
        """The tool as a function schema of OpenAI's chat API, which chat templates use too."""
        properties: dict[str, dict[str, Any]] = {}
        for argument in self.arguments:
            described: dict[str, Any] = {"type": argument.type, "description": argument.description}
            if argument.type == "array":
                described["items"] = {"type": "string"}
            if argument.choices:
                described["enum"] = list(argument.choices)
            properties[argument.name] = described
        required = [argument.name for argument in self.arguments if argument.required]
        parameters = {"type": "object", "properties": properties, "required": required}
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": parameters},
        }

    @property
    def signature(self) -> str:
        """`name(argument: type, …)`; optional arguments have a question mark."""
        given = (f"{each.name}{'' if each.required else '?'}: {each.type}" for each in self.arguments)
        return f"{self.name}({', '.join(given)})"

    @property
    def command(self) -> str:
        """How it is called in the shell."""
        if self.usage:
            return self.usage
        words = [self.name]
        for each in self.arguments:
            shown = each.name.upper() + ("…" if each.type == "array" else "")
            if each.place == "option":
                shown = f"--{each.name.replace('_', '-')}" + ("" if each.type == "boolean" else f"={shown}")
            elif each.place == "input":
                shown = f"<<'EOF' … EOF  ({each.name})"
            words.append(shown if each.required else f"[{shown}]")
        return " ".join(words)


@dataclass(frozen=True)
class Bundle:
    """A folder of tools.

    Attributes:
        name: of the folder.
        path: the folder.
        description: for people.
        tools: its tools.
        digest: of its content; layers are named by it.
        install: shell commands that install it, run in its folder; empty where it needs none.
    """

    name: str
    path: Path
    description: str
    tools: tuple[Tool, ...]
    digest: str
    install: str = ""


BASH_TOOL = Tool(
    "bash",
    "Run a command in the shell of the sandbox. Its directory and variables persist from call to call.",
    (Argument("command", "string", "The command.", required=True),),
    {"command": "git log --oneline -1 && ls -a"},
)
SUBMIT_TOOL = Tool("submit", "Hand in the work: the repository as it stands is judged, and the episode ends.", (), {})


@dataclass(frozen=True)
class ToolSet:
    """The tools of an agent.

    Attributes:
        shell: whether it may run any shell command.
        bundles: the bundles of the other tools.
    """

    shell: bool
    bundles: tuple[Bundle, ...] = ()

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools of the bundles."""
        return tuple(tool for bundle in self.bundles for tool in bundle.tools)

    @property
    def names(self) -> frozenset[str]:
        """The names of `tools`."""
        return frozenset(tool.name for tool in self.tools)

    @property
    def functions(self) -> tuple[Tool, ...]:
        """Everything that can be called: the shell, the tools, and the submission."""
        named = {tool.name: tool for tool in (*((BASH_TOOL,) if self.shell else ()), *self.tools)}
        return tuple({**named, "submit": named.get("submit", SUBMIT_TOOL)}.values())

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """`functions` as function schemas of OpenAI's chat API."""
        return [tool.schema for tool in self.functions]

    def example(self, form: ActionFormat) -> str:
        """An answer in this format that is a good first action."""
        if self.shell:
            return form.write(str((BASH_TOOL.example or {})["command"]))
        shown = next((tool for tool in self.tools if tool.example), SUBMIT_TOOL)
        return self.example_of(shown, form)

    def example_of(self, tool: Tool, form: ActionFormat) -> str:
        """An answer in this format that calls `tool` with its example."""
        if form.write_call is not None:
            return form.write_call(tool.name, tool.example or {})
        return form.write(shell_command(tool, tool.example or {}))

    def resolve(self, action: Action) -> Command | Submit | Malformed:
        """The command that carries out `action`, the submission, or a message why it cannot be done."""
        if isinstance(action, Call):
            return self._called(action)
        if isinstance(action, Edits):
            if "edit" not in self.names:
                return Malformed(f"Search/replace blocks are not taken here.{self._known('')} Nothing was changed.")
            return self._called(Call("edit", {"command": "apply", "content": write_blocks(list(action.blocks))}))
        if isinstance(action, Command) and not self.shell:
            return self._typed(action.text)
        return action

    def _called(self, call: Call) -> Command | Malformed:
        tool = next((tool for tool in self.tools if tool.name == call.name), None)
        if tool is None:
            return Malformed(f"There is no function {call.name[:100]!r}.{self._known(call.name)} Nothing was run.")
        try:
            return Command(shell_command(tool, call.arguments, program=f"{PROGRAMS}/{tool.name}"))
        except ValueError as error:
            problem = f"{error}" if str(error).endswith("?") else f"{error}."
            return Malformed(f"{tool.name}: {problem} It is called as {tool.signature}. Nothing was run.")

    def _typed(self, text: str) -> Command | Malformed:
        """The command of an agent without shell: one tool and its arguments, without shell expansion."""
        heredoc = _heredoc(text)
        body = ""
        if heredoc:
            text, (body, found, after) = heredoc[1], _up_to_line(text[heredoc.end() :], heredoc[3])
            if not found or after.strip():
                what = "nothing may follow" if found else "there must be"
                return Malformed(f"{what.capitalize()} the line {heredoc[3]} that ends the input. Nothing was run.")
        try:
            words = shlex.split(text)
        except ValueError as error:
            return Malformed(f"The command cannot be read: {error}. Nothing was run.")
        name = words[0] if words else ""
        if name not in self.names:
            known = self._known(name)
            return Malformed(f"There is no shell here, and no command {name[:100]!r}.{known} Nothing was run.")
        command = shlex.join([f"{PROGRAMS}/{name}", *words[1:]])
        return Command(_with_input(command, body if heredoc else None))

    def _known(self, name: str) -> str:
        names = [tool.name for tool in self.functions]
        near = difflib.get_close_matches(name[:100], names, n=1)
        return (f" Did you mean {near[0]}?" if near else "") + f" There are: {', '.join(names)}."


def tool_set(chosen: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> ToolSet:
    """The set with these names (see the module's docstring).

    Raises:
        ConfigurationError: there is no such set or bundle, a bundle is malformed, the list is empty, or two tools have
            the same name.
    """
    names = [chosen] if isinstance(chosen, str | os.PathLike) else chosen
    if not isinstance(names, Iterable):
        raise ConfigurationError(f"tools: expected names or folders, got {chosen!r}")
    flat = [each for name in names for each in TOOL_SETS.get(str(name), (name,))]
    if not flat:
        raise ConfigurationError(f"tools: expected at least one of bash, {', '.join(TOOL_SETS)}, or a bundle")
    wanted = dict.fromkeys(str(each) for each in flat if str(each) not in ("bash", "submit"))
    if not wanted:
        return ToolSet(shell="bash" in map(str, flat))
    bundles = tuple(load_bundle(name) for name in (*wanted, "submit"))
    owners: dict[str, Bundle] = {}
    for bundle in bundles:
        for tool in bundle.tools:
            if owners.setdefault(tool.name, bundle) is not bundle:
                raise ConfigurationError(f"tools: {owners[tool.name].path} and {bundle.path} both have {tool.name!r}")
    return ToolSet("bash" in map(str, flat), bundles)


def tools_for(form: ActionFormat, chosen: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> ToolSet:
    """The set with these names; for search/replace blocks also the bundle `edit`, which applies them."""
    if form.name != "search_replace":
        return tool_set(chosen)
    return tool_set([*([chosen] if isinstance(chosen, str | os.PathLike) else chosen), "edit"])


def shell_command(tool: Tool, arguments: Mapping[str, Any], *, program: str = "") -> str:
    """The shell command that calls `tool`.

    Args:
        program: the first word, by default the tool's name.

    Raises:
        ValueError: an argument is unknown, missing or invalid; the message says what is expected.
    """
    given = _checked(tool, arguments)
    options: list[tuple[str, str]] = []
    positions: list[str] = []
    body = None
    for argument in tool.arguments:
        if argument.name not in given:
            continue
        value, option = given[argument.name], f"--{argument.name.replace('_', '-')}"
        if argument.place == "input":
            body = str(value)
        elif argument.place == "position":
            positions += value if isinstance(value, list) else [str(value)]
        elif isinstance(value, bool):
            options += [(option, "")] * value
        else:
            options += [(f"{option}=", str(one)) for one in (value if isinstance(value, list) else [value])]
    longest = max((len(word.encode()) for word in (*(value for _, value in options), *positions)), default=0)
    if longest > _WORD_BYTES:
        raise ValueError(f"an argument of {longest} bytes is too long: at most {_WORD_BYTES} can be passed")
    first = [shlex.quote(word) for word in positions]
    then = [option + (shlex.quote(value) if option.endswith("=") else "") for option, value in options]
    if any(word.startswith("-") and not _NEGATIVE.fullmatch(word) for word in positions):
        first, then = then, ["--", *first]
    return _with_input(" ".join([program or tool.name, *first, *then]), body)


def _checked(tool: Tool, arguments: Mapping[str, Any]) -> dict[str, Any]:
    known = {argument.name: argument for argument in tool.arguments}
    for name in arguments:
        if name not in known:
            raise ValueError(f"it has no argument {name[:100]!r}{nearest(name[:100], tuple(known))}")
    given = {name: _value(known[name], value) for name, value in arguments.items() if value is not None}
    missing = [name for name, argument in known.items() if argument.required and name not in given]
    if missing:
        wanted = known[missing[0]]
        choices = f"one of {', '.join(wanted.choices)}" if wanted.choices else wanted.description.rstrip(".")
        raise ValueError(f"the argument {missing[0]!r} is missing: {choices}")
    return given


def _value(argument: Argument, value: Any) -> Any:
    """`value` converted to the argument's type: models, and formats that only know text, write numbers as strings."""
    expected = {"integer": "an integer", "array": "a list of strings"}.get(argument.type, f"a {argument.type}")
    wrong = ValueError(f"{argument.name}: expected {expected}, got {str(value)[:60]!r}")
    if argument.type == "boolean":
        if str(value).strip().lower() not in ("true", "false"):
            raise wrong
        return str(value).strip().lower() == "true"
    if argument.type in ("integer", "number"):
        number = r"[+-]?\d{1,15}(\.0*)?" if argument.type == "integer" else r"[+-]?\d{1,15}(\.\d{0,15})?"
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise wrong
        if not re.fullmatch(number, str(value).strip()):
            raise wrong
        return int(float(value)) if argument.type == "integer" else float(value)
    if argument.type == "array":
        if isinstance(value, str):
            try:
                value = json.loads(value) if value.lstrip().startswith("[") else [value]
            except (ValueError, RecursionError):
                value = [value]
        if not isinstance(value, list) or not all(isinstance(each, str | int | float) for each in value):
            raise wrong
        return [_passable(argument, str(each)) for each in value]
    if not isinstance(value, str | int | float):
        raise wrong
    text = _passable(argument, str(value))
    if argument.choices and text not in argument.choices:
        raise ValueError(f"{argument.name}: expected one of {', '.join(argument.choices)}, got {text[:60]!r}")
    return text


def _passable(argument: Argument, text: str) -> str:
    if fault := not_text(text):
        raise ValueError(f"{argument.name} holds {fault}, which cannot be passed on")
    return text


def _heredoc(text: str) -> re.Match[str] | None:
    """The first line of a heredoc, at the beginning of `text`; None if there is none, or its `<<` is quoted."""
    found = _HEREDOC.match(text)
    try:
        return found if found and shlex.split(found[1]) else None
    except ValueError:  # a quotation that begins before the "<<" does not end there
        return None


def _up_to_line(text: str, line: str) -> tuple[str, bool, str]:
    """The text before the first line that equals `line`, whether there is one, and the text after it."""
    before, found, after = f"\n{text}\n".partition(f"\n{line}\n")
    return (before[1:] + "\n" if before[1:] else ""), bool(found), after


def _with_input(command: str, body: str | None) -> str:
    """`command` with `body` on its standard input; unchanged without one."""
    return command if body is None else f"printf %s {shlex.quote(body)} | {command}"


def shipped_bundles() -> dict[str, Path]:
    """Name → folder of the bundles of this package."""
    package = Path(__file__).parents[1]
    folder = package / "shipped_tools"
    if not folder.is_dir():  # a checkout, which is not installed
        folder = package.parent / "tools"
    return {path.parent.name: path.parent for path in sorted(folder.glob("*/config.yaml"))}


def load_bundle(name_or_path: str | os.PathLike[str]) -> Bundle:
    """Read a shipped bundle by its name, or another one by its path.

    Raises:
        ConfigurationError: there is no such bundle, or it is malformed; the message names file, key and expected value.
    """
    shipped = shipped_bundles()
    path = shipped.get(str(name_or_path)) or expand(name_or_path).absolute()
    file = path / "config.yaml"
    if (path / AGENT_FILE).is_file():
        return _program_bundle(path)
    if not file.is_file():
        raise ConfigurationError(
            f"no tool bundle {str(name_or_path)!r}{nearest(str(name_or_path), (*shipped, *TOOL_SETS)) or ':'} "
            f"give {', '.join(shipped)}, or a folder with a config.yaml"
        )
    try:
        config = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file}: cannot be read: {' '.join(str(error).split())}") from error
    settings = _mapping(config, str(file), ("description", "tools"))
    described = _mapping(settings.get("tools"), f"{file}: tools", None)
    if not described:
        raise ConfigurationError(f"{file}: tools: expected at least one tool")
    tools = tuple(_tool(str(name), value, f"{file}: tools: {name}") for name, value in described.items())
    for tool in tools:
        if not (path / "bin" / tool.name).is_file():
            raise ConfigurationError(f"{file}: tools: {tool.name}: there is no program {path / 'bin' / tool.name}")
    install = "bash ./install.sh" if (path / "install.sh").is_file() else ""
    return Bundle(path.name, path, str(settings.get("description", "")).strip(), tools, _digest(path), install)


def _program_bundle(path: Path) -> Bundle:
    """The folder of an agent program (see `programs.spec`): it has no tools, and is installed as bundles are."""
    try:
        settings = yaml.safe_load((path / AGENT_FILE).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path / AGENT_FILE}: cannot be read: {' '.join(str(error).split())}") from error
    install = settings.get("install") if isinstance(settings, dict) else None
    return Bundle(path.name, path, "", (), _digest(path), str(install or ""))


def _tool(name: str, value: Any, where: str) -> Tool:
    if not name.replace("_", "").replace("-", "").isalnum() or not name.isascii() or name == "bash":
        raise ConfigurationError(f"{where}: expected a name of letters, digits, - and _ that is not bash")
    settings = _mapping(value, where, ("description", "arguments", "example", "usage"))
    listed = settings.get("arguments") or []
    if not isinstance(listed, list):
        raise ConfigurationError(f"{where}: arguments: expected a list, got {type(listed).__name__}")
    arguments = tuple(_argument(each, f"{where}: arguments[{at}]") for at, each in enumerate(listed))
    names = [argument.name for argument in arguments]
    if len(set(names)) < len(names) or sum(argument.place == "input" for argument in arguments) > 1:
        raise ConfigurationError(f"{where}: arguments: expected different names, and at most one in place input")
    example = settings.get("example")
    if example is not None:
        example = _mapping(example, f"{where}: example", tuple(names))
    return Tool(name, _text(settings, "description", where), arguments, example, str(settings.get("usage", "")).strip())


def _argument(value: Any, where: str) -> Argument:
    settings = _mapping(value, where, ("name", "type", "description", "required", "choices", "place"))
    name, kind = _text(settings, "name", where), str(settings.get("type", "string"))
    place = str(settings.get("place", "option"))
    choices = settings.get("choices") or []
    if not name.isidentifier():
        raise ConfigurationError(f"{where}: name: expected a word, got {name!r}")
    if kind not in _TYPES:
        raise ConfigurationError(f"{where}: type: expected one of {', '.join(_TYPES)}, got {kind!r}")
    if place not in _PLACES:
        raise ConfigurationError(f"{where}: place: expected one of {', '.join(_PLACES)}, got {place!r}")
    if not isinstance(choices, list) or not isinstance(settings.get("required", False), bool):
        raise ConfigurationError(f"{where}: expected a list of choices, and true or false for required")
    if (place == "input" and kind != "string") or (place == "position" and kind == "boolean"):
        raise ConfigurationError(f"{where}: a {kind} cannot be passed as {place}")
    return Argument(
        name,
        kind,
        _text(settings, "description", where),
        settings.get("required", False),
        tuple(str(choice) for choice in choices),
        cast("Place", place),
    )


def _text(settings: Mapping[str, Any], key: str, where: str) -> str:
    value = settings.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ConfigurationError(f"{where}: {key}: expected text, got {value!r}")
    return value.strip()


def _mapping(value: Any, where: str, known: tuple[str, ...] | None) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigurationError(f"{where}: expected keys and values, got {type(value).__name__}")
    for key in value if known is not None else ():
        if key not in (known or ()):
            raise ConfigurationError(f"{where}: unknown key {key!r}{nearest_or_all(str(key), known or ('none',))}")
    return value


def _digest(folder: Path) -> str:
    """Digest of names, contents and executable bits."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            content = path.read_bytes()
            runs = os.access(path, os.X_OK)
            total.update(repr((path.relative_to(folder).as_posix(), runs, len(content))).encode() + content)
    return total.hexdigest()[:24]
