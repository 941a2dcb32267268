"""`--print-completion SHELL`: completion scripts for the shell, including the keys of a configuration."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["add_print_completion", "settings_of"]

Settings = Mapping[str, Sequence[str]]
"""Dotted name → allowed values; empty if any value is allowed."""


def add_print_completion(
    parser: argparse.ArgumentParser, settings: Callable[[], Settings] | None = None, words: Sequence[str] = ()
) -> None:
    """Add the option. Call it last: the script completes the arguments that the parser has at that time.

    Args:
        parser: of the program; with `settings` it accepts `--section.key value` besides its own options.
        settings: called only when the script is printed.
        words: values of the program's first argument other than a file.
    """

    class PrintCompletion(argparse.Action):
        def __call__(
            self,
            parser: argparse.ArgumentParser,
            _namespace: argparse.Namespace,
            values: object,
            _option: str | None = None,
        ) -> None:
            sys.stdout.write(_script(parser, str(values), settings() if settings else {}, words) + "\n")
            parser.exit()

    parser.add_argument(
        "--print-completion",
        action=PrintCompletion,
        choices=("bash", "zsh"),
        help="print the completion script for a shell and exit",
    )


def settings_of(kind: type, where: str = "") -> Iterator[tuple[str, Sequence[str]]]:
    """The fields of a configuration's dataclass and of nested ones, with their allowed values.

    Args:
        kind: a dataclass.
        where: its dotted name.
    """
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if not field.init:
            continue
        name = f"{where}.{field.name}" if where else field.name
        values: list[str] = []
        sections = []
        for hint in _alternatives(hints[field.name]):
            if dataclasses.is_dataclass(hint):
                sections.append(typing.cast(type, hint))
            elif typing.get_origin(hint) is typing.Literal:
                values += map(str, typing.get_args(hint))
            elif hint is bool:
                values += ["true", "false"]
            elif hint is type(None):
                values.append("null")
        for section in sections:
            yield from settings_of(section, name)
        if not sections:
            yield name, () if values == ["null"] else values


def _alternatives(hint: Any) -> Sequence[Any]:
    return typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)


def _script(parser: argparse.ArgumentParser, shell: str, settings: Settings, words: Sequence[str]) -> str:
    import shtab

    taken = parser._option_string_actions  # noqa: SLF001 argparse has no public access
    for name, values in settings.items():
        if f"--{name}" not in taken:
            parser.add_argument(f"--{name}", choices=values or None)
    if words and all(action.option_strings for action in parser._actions):  # noqa: SLF001
        parser.add_argument("first", nargs="?")  # e.g. a subcommand, which has another parser
    for action in parser._actions:  # noqa: SLF001
        if action.nargs != 0 and action.choices is None and action.type in (None, Path):
            action.complete = (  # type: ignore[attr-defined] # read by shtab
                shtab.FILE if action.option_strings else _words_or_files(parser.prog, words)
            )
    return str(shtab.complete(parser, shell=shell))


def _words_or_files(program: str, words: Sequence[str]) -> dict[str, Any]:
    """A completion in shtab's format; bash treats the results of a function with `_file` in its name as file names."""
    name = f"_{program.replace('-', '_')}_words_or_files"
    listed = " ".join(words)
    bash = f'{name}() {{\n  compgen -W "{listed}" -- "$1"\n  compgen -f -- "$1"\n}}'
    zsh = f"{name}() {{\n  _alternative 'words:word:({listed})' 'files:file:_files'\n}}"
    return {"bash": name, "zsh": name, "preamble": {"bash": bash, "zsh": zsh}}
