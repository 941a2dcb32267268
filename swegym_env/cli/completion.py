"""`swegym completion`: a script that completes commands, options, known names and files in a shell."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from swegym_env.agent.tools import TOOL_SETS, shipped_bundles
from swegym_env.cli.options import add_command
from swegym_env.sandbox.backends import LOCAL_BACKENDS
from swegym_env.tasks.datasets import HUB_NAMES, SHIPPED

__all__ = ["add_parser", "completion_script"]


def add_parser(commands: Any) -> None:
    """Add `completion` to the commands of `swegym`."""
    parser = add_command(
        commands,
        "completion",
        _run,
        "print the script that completes swegym in a shell",
        "swegym completion bash",
        more=": for bash into ~/.local/share/bash-completion/completions/swegym, for zsh into a file _swegym in a "
        "folder of $fpath.",
    )
    parser.add_argument("shell", choices=["bash", "zsh"], help="the shell that runs the script")


def _run(options: argparse.Namespace) -> int:
    from swegym_env.cli.main import build_parser

    print(completion_script(build_parser(), options.shell))
    return 0


def completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    """A script for `shell` (bash or zsh) that completes the program of `parser`."""
    import shtab

    _mark(parser, _words())
    return str(shtab.complete(parser, shell=shell))


def _words() -> Mapping[str, Sequence[str]]:
    """Option → the values that are known besides file names. An option means the same in every command."""
    return {
        "--dataset": (*SHIPPED, *HUB_NAMES),
        "--for": tuple(HUB_NAMES),
        "--sandbox": ("auto", *LOCAL_BACKENDS),
        "--tools": (*TOOL_SETS, "bash", *shipped_bundles()),
        "--split": ("train", "validation", "test"),
        "--predictions": ("gold", "empty"),
        "--patch": ("gold", "empty"),
    }


def _mark(parser: argparse.ArgumentParser, words: Mapping[str, Sequence[str]]) -> None:
    """Set what shtab completes for each argument: known values, or files if it takes text."""
    for action in parser._actions:  # noqa: SLF001 argparse has no public way to list them
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for command in action.choices.values():
                _mark(command, words)
        elif action.nargs != 0 and action.choices is None and action.type in (None, Path):
            option = next((name for name in action.option_strings if name in words), "")
            action.complete = _words_or_files(option, words.get(option, ()))  # type: ignore[attr-defined] # read by shtab


def _words_or_files(option: str, words: Sequence[str]) -> dict[str, Any]:
    """Both in shtab's form. `_file` in the function's name makes bash treat its results as file names, with slashes."""
    if not words:
        return {"bash": "_shtab_compgen_files", "zsh": "_files"}
    name = f"_swegym_{option.strip('-')}_or_files"
    listed = " ".join(words)
    bash = f'{name}() {{\n  compgen -W "{listed}" -- "$1"\n  compgen -f -- "$1"\n}}'
    zsh = f"{name}() {{\n  _alternative 'words:word:({listed})' 'files:file:_files'\n}}"
    return {"bash": name, "zsh": name, "preamble": {"bash": bash, "zsh": zsh}}
