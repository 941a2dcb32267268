"""Reading a Dockerfile: instructions with continued lines and here-documents, and variables put into them.

After the reference of the Dockerfile (docs.docker.com/reference/dockerfile).
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from swegym_env.errors import ImageError

__all__ = ["Instruction", "assignments", "expand", "parse_dockerfile", "split_flags", "words_of"]

_HEREDOC = re.compile(r"<<(-?)\s*(['\"]?)([A-Za-z_][\w.]*)\2")
_VARIABLE = re.compile(r"\\(.)|\$(?:(\w+)|\{(\w+)(?::([-+])((?:[^{}]|\{[^{}]*\})*))?\})", re.DOTALL)
_DIRECTIVE = re.compile(r"#\s*(\w+)\s*=\s*(\S+)\s*$")


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes:
        line: its first line in the file.
        name: in capitals.
        text: the text after the name, on one or more lines.
        heredocs: for each here-document its name, its content, and whether variables are replaced in it.
    """

    line: int
    name: str
    text: str
    heredocs: tuple[tuple[str, str, bool], ...] = ()

    @property
    def exec_form(self) -> list[str] | None:
        """The words of the form `["program", "argument"]`; None for the shell form."""
        if not self.text.lstrip().startswith("["):
            return None
        try:
            found = json.loads(self.text)
        except ValueError:
            return None
        return found if isinstance(found, list) and all(isinstance(word, str) for word in found) else None


def parse_dockerfile(text: str, where: str) -> list[Instruction]:
    """The instructions of a Dockerfile.

    Raises:
        ImageError: it is malformed; the text begins with `where` and the line.
    """
    lines = text.splitlines()
    escape, found, number = "\\", [], 0
    while number < len(lines) and (directive := _DIRECTIVE.match(lines[number])):
        if directive[1].lower() == "escape":
            escape = directive[2]
        number += 1
    number = 0
    while number < len(lines):
        first, logical = number, ""
        while number < len(lines):
            line = lines[number]
            number += 1
            if line.lstrip().startswith("#") or (logical and not line.strip()):
                if logical:
                    continue
                break
            stripped = line.rstrip()
            if stripped.endswith(escape):
                logical += stripped[:-1]
                continue
            logical += line
            break
        if not logical.strip():
            continue
        name, _, rest = (
            logical.strip().partition(" ") if " " in logical.strip() else (*logical.strip().partition("\t"),)
        )
        name = name.upper()
        heredocs = []
        if name in ("RUN", "COPY", "ADD"):
            for dash, quote, end in _HEREDOC.findall(rest):
                content = []
                while number < len(lines) and (lines[number].lstrip("\t") if dash else lines[number]) != end:
                    content.append(lines[number].lstrip("\t") if dash else lines[number])
                    number += 1
                if number == len(lines):
                    raise ImageError(f"{where}:{first + 1}: the here-document {end} does not end")
                number += 1
                heredocs.append((end, "".join(f"{line}\n" for line in content), not quote))
        if not re.fullmatch(r"[A-Z]+", name):
            raise ImageError(f"{where}:{first + 1}: expected an instruction, got {logical.strip()[:60]!r}")
        found.append(Instruction(first + 1, name, rest.strip(), tuple(heredocs)))
    return found


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$name`, `${name}`, `${name:-default}` and `${name:+other}`; a backslash keeps the next character."""

    def value(match: re.Match[str]) -> str:
        if match[1] is not None:
            return match[1] if match[1] == "$" else f"\\{match[1]}"
        found = variables.get(match[2] or match[3], "")
        if match[4] == "-":
            return found or expand(match[5], variables)
        if match[4] == "+":
            return expand(match[5], variables) if found else ""
        return found

    return _VARIABLE.sub(value, text)


def words_of(instruction: Instruction, text: str, at: str) -> list[str]:
    """The words of a text, with quotes removed. Raises ImageError where a quote does not end."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ImageError(f"{at}: {instruction.name}: {error}") from error


def assignments(instruction: Instruction, variables: Mapping[str, str], at: str) -> dict[str, str]:
    """Names and values of ENV, in both of its forms. Raises ImageError: a word is no NAME=VALUE."""
    first, _, rest = instruction.text.partition(" ")
    if "=" not in first:
        return {first: expand(rest.strip(), variables)}
    pairs = words_of(instruction, expand(instruction.text, variables), at)
    if bad := next((pair for pair in pairs if "=" not in pair), ""):
        raise ImageError(f"{at}: {instruction.name}: expected NAME=VALUE, got {bad!r}")
    return dict(pair.split("=", 1) for pair in pairs)


def split_flags(text: str) -> tuple[dict[str, str], str]:
    """The flags `--name=value` before the rest of an instruction."""
    flags: dict[str, str] = {}
    while match := re.match(r"\s*--([\w-]+)(?:=(\S+))?\s*", text):
        flags[match[1]] = match[2] or ""
        text = text[match.end() :]
    return flags, text
