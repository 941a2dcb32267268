"""Finds the fenced blocks of the README and of docs/, and reads the comments above them.

The language of a block decides what is done with it: `sh` and `python` are run, `yaml` is checked against the settings,
`text` and `diff` are only shown. HTML comments right above the fence, invisible to readers of the page, change that:

    <!-- checked only: REASON -->         not run; every command is checked against its parser instead
    <!-- small: PROGRAM ARGUMENTS -->     adds the arguments to each command of that program; may be repeated
    <!-- exits with: CODE -->             the block's last command fails with this code
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["LANGUAGES", "ROOT", "Block", "blocks_of", "commands_of", "pages"]

ROOT = Path(__file__).parents[2]
LANGUAGES = frozenset({"sh", "python", "yaml", "text", "diff"})
_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>```+|~~~+)\s*(?P<language>\w*)[^\n]*$")
_REMARK = re.compile(r"^<!-- (checked only|small|exits with): (.+?) -->$")
_ASSIGNMENT = re.compile(r"^[A-Za-z_]\w*=")
_HERE_DOCUMENT = re.compile(r"^(.*?)<<-? ?(['\"]?)(\w+)\2[^\n]*\n.*?^\s*\3$\n", re.MULTILINE | re.DOTALL)
_BETWEEN = {"|", "||", "&&", ";", "&"}


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Attributes:
        page: the file, from the root.
        line: of its first line of content, from 1.
        language: of the fence.
        text: its content.
        checked_only: why it is not run; empty if it is run.
        small: program → arguments added to each of its commands.
        exit_code: the expected exit code.
    """

    page: str
    line: int
    language: str
    text: str
    checked_only: str = ""
    small: dict[str, str] = field(default_factory=dict)
    exit_code: int = 0

    @property
    def place(self) -> str:
        """For messages."""
        return f"{self.page}:{self.line}"

    @property
    def made_small(self) -> str:
        """The text with the arguments of `small` appended to their commands."""
        if not self.small:
            return self.text
        lines = []
        for line in _joined(self.text):
            for program, arguments in self.small.items():
                if re.match(rf"(\S+=\S* )*{re.escape(program)}\b", line):
                    command, hash_sign, comment = line.partition(" #")
                    line = f"{command.rstrip()} {arguments}{'  #' if hash_sign else ''}{comment}"
            lines.append(line)
        return "\n".join(lines) + "\n"


def pages() -> list[Path]:
    """The README, the documents beside it, and the pages of docs/."""
    beside = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    return [path for path in beside if path.exists()] + sorted((ROOT / "docs").rglob("*.md"))


def blocks_of(page: Path) -> list[Block]:
    """Every fenced block of a page, in order.

    Raises:
        ValueError: a fence is not closed.
    """
    name = page.relative_to(ROOT).as_posix()
    lines = page.read_text(encoding="utf-8").split("\n")
    found, at = [], 0
    while at < len(lines):
        opened = _FENCE.match(lines[at])
        at += 1
        if opened is None:
            continue
        first = at
        while at < len(lines) and lines[at].strip() != opened["fence"]:
            at += 1
        if at == len(lines):
            raise ValueError(f"{name}:{first}: block is not closed")
        content = "".join(f"{line[len(opened['indent']) :]}\n" for line in lines[first:at])
        remarks = _remarks_above(lines, first - 1, name)
        found.append(Block(name, first + 1, opened["language"], content, **remarks))
        at += 1
    return found


def _remarks_above(lines: list[str], at: int, name: str) -> dict[str, object]:
    """The settings in the comments right above the fence in line `at`."""
    found: dict[str, object] = {}
    small: dict[str, str] = {}
    while at and lines[at - 1].strip().startswith("<!-- "):
        at -= 1
        remark = _REMARK.match(lines[at].strip())
        if remark is None:
            raise ValueError(f"{name}:{at + 1}: unknown comment: {lines[at]}")
        if remark[1] == "small":
            program, _, arguments = remark[2].partition(" ")
            small[program] = arguments
        elif remark[1] == "exits with":
            found["exit_code"] = int(remark[2])
        else:
            found["checked_only"] = remark[2]
    return {**found, "small": small}


def commands_of(text: str) -> Iterator[list[str]]:
    """The commands of a shell block as words, without leading assignments and redirections."""
    for line in _joined(_HERE_DOCUMENT.sub(r"\1\n", text)):
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>()")
        lexer.whitespace_split = True
        words: list[str] = []
        rest = iter(list(lexer))
        for word in rest:
            if word in _BETWEEN:
                yield from [words] if words else []
                words = []
            elif word.startswith((">", "<")):
                next(rest, None)
            elif words or not _ASSIGNMENT.match(word):
                words.append(word)
        if words:
            yield words


def _joined(text: str) -> list[str]:
    """The lines of a text, continued lines joined."""
    return re.sub(r"\\\n\s*", "", text).rstrip("\n").split("\n")
