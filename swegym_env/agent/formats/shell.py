"""Formats of one shell command per answer: in `<execute>` tags, in a fenced block, or the whole answer."""

from __future__ import annotations

import re

from swegym_env.agent.actions import Action, ActionFormat, Malformed, as_command
from swegym_env.agent.formats.scanning import Openings, after_reasoning, delimited, find_opening

__all__ = ["BASH", "EXECUTE", "RAW"]

_OPENING = re.compile(r"^(`{3,8})(?:bash|sh|shell)[ \t]*\r?$", re.MULTILINE)
_CLOSINGS = {size: re.compile(rf"^`{{{size},}}[ \t]*\r?$", re.MULTILINE) for size in range(3, 9)}


def _one_command(blocks: list[str], what: str) -> Action:
    """The command in the only block, or a message that there is none or more than one."""
    if len(blocks) == 1:
        return as_command(blocks[0])
    found = "none" if not blocks else str(len(blocks))
    return Malformed(f"Expected exactly one {what} in the answer and found {found}. Nothing was run.")


def _parse_execute(text: str) -> Action:
    return _one_command(delimited(text, "<execute>", "</execute>"), "<execute>COMMAND</execute>")


def _find_fence(text: str) -> int:
    fences = Openings(text, "```")
    while (start := fences.next()) >= 0:
        if _OPENING.match(text, start - 3):
            return start - 3
    return -1


def _parse_bash(text: str) -> Action:
    blocks: list[str] = []
    fences = Openings(text, "```")
    while (start := fences.next()) >= 0:
        opened = _OPENING.match(text, start - 3)
        if opened is None:
            continue
        closed = _CLOSINGS[len(opened[1])].search(text, opened.end() + 1)
        if closed is None:
            return Malformed("The ```bash block is not closed by a line of ```. Nothing was run.")
        blocks.append(text[opened.end() + 1 : closed.start()])
        fences.at = closed.end()
    return _one_command(blocks, "```bash block")


EXECUTE = ActionFormat(
    "execute",
    _parse_execute,
    "<execute>{}</execute>".format,
    "Write exactly one command in each answer, as <execute>COMMAND</execute>.",
    find=lambda text: find_opening(text, "<execute>"),
)
BASH = ActionFormat(
    "bash",
    _parse_bash,
    "```bash\n{}\n```".format,
    "Write exactly one command in each answer, in a fenced block that begins with ```bash.",
    find=_find_fence,
)
RAW = ActionFormat(
    "raw",
    lambda text: as_command(after_reasoning(text)),
    "{}".format,
    "Your whole answer is run as one shell command.",
)
