"""What completes `swegym` in a shell, made of its own parser: commands, options, the words that they know, files."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from swegym_env.interaction.bundles import shipped_bundles
from swegym_env.interaction.toolsets import TOOL_SETS
from swegym_env.tasks.loading import HUB_NAMES, SHIPPED

__all__ = ["completion_script"]


def completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    """A script for `shell` (bash or zsh) to read, which completes the program of `parser`."""
    import shtab

    _mark(parser)
    return str(shtab.complete(parser, shell=shell))


def _words() -> Mapping[str, Sequence[str]]:
    """Option → what it takes besides the names of files; an option of one name means the same in every command."""
    return {
        "--dataset": (*SHIPPED, *HUB_NAMES),
        "--for": tuple(HUB_NAMES),
        "--sandbox": ("auto", "apptainer", "namespace"),
        "--tools": (*TOOL_SETS, "bash", *shipped_bundles()),
        "--split": ("train", "validation", "test"),
        "--predictions": ("gold", "empty"),
        "--patch": ("gold", "empty"),
    }


def _mark(parser: argparse.ArgumentParser) -> None:
    """Tell shtab what each argument takes: words of its own, or any file where it takes text."""
    words = _words()
    for action in parser._actions:  # noqa: SLF001 argparse has no other way to ask
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for command in action.choices.values():
                _mark(command)
        elif action.nargs != 0 and action.choices is None and action.type in (None, Path):
            option = next((name for name in action.option_strings if name in words), "")
            action.complete = _words_or_files(option, words.get(option, ()))  # type: ignore[attr-defined] # where shtab looks for it


def _words_or_files(option: str, words: Sequence[str]) -> dict[str, Any]:
    """In shtab's form; a name with `_file` in it makes bash treat what it says as file names, with their slashes."""
    if not words:
        return {"bash": "_shtab_compgen_files", "zsh": "_files"}
    name = f"_swegym_{option.strip('-')}_or_files"
    listed = " ".join(words)
    bash = f'{name}() {{\n  compgen -W "{listed}" -- "$1"\n  compgen -f -- "$1"\n}}'
    zsh = f"{name}() {{\n  _alternative 'words:word:({listed})' 'files:file:_files'\n}}"
    return {"bash": name, "zsh": name, "preamble": {"bash": bash, "zsh": zsh}}
