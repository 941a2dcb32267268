"""Actions of an agent, and the formats in which they are written.

A format is a pure function from text to an `Action`. It never raises: text that it cannot parse becomes a `Malformed`
whose message is the next observation. The formats are in `agent.formats`; `agent.tools` turns a `Call` or `Edits` into
a command of the sandbox.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from swegym_env.agent.search_replace import Block

__all__ = [
    "Action",
    "ActionFormat",
    "Call",
    "Command",
    "Edits",
    "Malformed",
    "Submit",
    "as_call",
    "as_command",
    "not_text",
]


@dataclass(frozen=True)
class Command:
    """A command for the shell of the sandbox."""

    text: str


@dataclass(frozen=True)
class Call:
    """A call of a tool, with the arguments as the model wrote them: not yet checked against the tool's signature."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Edits:
    """Search/replace blocks, applied all or none."""

    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Submit:
    """The agent submits its work."""


@dataclass(frozen=True)
class Malformed:
    """Text that is no action; `message` tells the agent what is expected."""

    message: str


Action = Command | Call | Edits | Submit | Malformed


@dataclass(frozen=True)
class ActionFormat:
    """One way of writing an action.

    Attributes:
        name: for `gymnasium.make(..., action_format=name)`.
        parse: text → Action.
        write: command → text that `parse` reads back as this command (and "submit" as the submission).
        instructions: its description in the prompt.
        write_call: (tool, arguments) → text that `parse` reads back as this call; raises ValueError if the format
            cannot express an argument. None if tools are called as shell commands.
        find: text → position of the first action in this format, -1 if there is none. `auto` reads an answer in the
            format whose action comes first. None: `auto` does not recognise the format.
        in_template: chat template (Jinja2 text) → whether its model writes calls in this format.
    """

    name: str
    parse: Callable[[str], Action]
    write: Callable[[str], str]
    instructions: str
    write_call: Callable[[str, Mapping[str, Any]], str] | None = None
    find: Callable[[str], int] | None = None
    in_template: Callable[[str], bool] | None = None


def as_command(text: str) -> Action:
    """The command `text`; the submission if it is just "submit"; or a message if it can be neither."""
    if text.count("\r\n") == text.count("\n"):  # if only some lines end so, the command means it
        text = text.replace("\r\n", "\n")
    text = text.strip("\n")
    if not text.strip():
        return Malformed("The action is empty: write one shell command, or submit. Nothing was run.")
    if fault := not_text(text):
        return Malformed(f"The action holds {fault}, which no command can. Nothing was run.")
    return Submit() if text.strip() == "submit" else Command(text)


def as_call(name: str, arguments: Mapping[str, Any]) -> Action:
    """The call; a call of `bash` becomes a `Command`, a call of `submit` a `Submit`."""
    if name == "submit" and not arguments:
        return Submit()
    if name == "bash":
        if set(arguments) == {"command"} and isinstance(arguments["command"], str):
            return as_command(arguments["command"])
        given = ", ".join(sorted(arguments)) or "none"
        return Malformed(f"bash takes one argument, command, a string; the arguments given: {given}. Nothing was run.")
    if not name or not_text(name):
        return Malformed("The call does not name a function. Nothing was run.")
    for key, value in arguments.items():
        fault = not_text(key) or (not_text(value) if isinstance(value, str) else "")
        if fault:
            return Malformed(f"An argument of {name} holds {fault}, which cannot be passed on. Nothing was run.")
    return Call(name, arguments)


def not_text(text: str) -> str:
    """Why `text` cannot be passed to a program; "" if it can."""
    if "\0" in text:
        return "a NUL character"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "half of a surrogate pair"
    return ""
