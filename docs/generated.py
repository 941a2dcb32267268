"""MkDocs calls this while it builds: pages that are read off the code, so that they cannot be out of date.

`reference/commands.md` holds what each command answers to `--help`, `reference/configuration.md` every field of a run's
configuration with its type, its default and its line of the docstring; `contributing.md` and
`security.md` lie in the root.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import os
import re
import typing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from swe_trainers.field_docs import field_docs, purpose, say_type

Main = Callable[[Sequence[str]], int]

_COMMANDS = """\
# Commands

What each command answers to `--help`. Exit codes: 0 on success; 1 where the answer is no; 2 where what was asked for is
wrong or cannot be had, in one line on standard error (`--debug` shows the traceback); 130 after Ctrl-C.
"""
_CONFIGURATION = """\
# Configuration

A run of `swe-train` is one YAML file. Any value can be given on the command line instead, as `--section.key value`. An
unknown key is an error that names the nearest match, and so is an option that would have no effect.
"""
_TRAINER = """\
## trainer

`trainer.algorithm` chooses one of the algorithms below, and with it what else there is.
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    for place, text in (
        ("reference/commands.md", commands_page()),
        ("reference/configuration.md", configuration_page()),
        ("contributing.md", _from_the_root("CONTRIBUTING.md")),
        ("security.md", _from_the_root("SECURITY.md")),
    ):
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put whole programs where a page has `<!-- program: PATH -->`; each has a test of its own."""
    root = Path(__file__).parents[1]

    def program(found: re.Match[str]) -> str:
        return f'```python title="{found[1]}"\n{(root / found[1]).read_text(encoding="utf-8")}```'

    return re.sub(r"^<!-- program: (\S+) -->$", program, markdown, flags=re.MULTILINE)


def _from_the_root(name: str) -> str:
    """A document that lies beside the README, its links as seen from docs/."""
    return (Path(__file__).parents[1] / name).read_text(encoding="utf-8").replace("](docs/", "](")


def commands_page() -> str:
    """What every command says of itself."""
    parts = [_COMMANDS]
    for program, words, main in _commands():
        level = "##" if not words else "###"
        parts.append(f"{level} {' '.join((program, *words))}\n\n```text\n{_help(main, words)}\n```\n")
    return "\n".join(parts)


def _commands() -> Iterator[tuple[str, tuple[str, ...], Main]]:
    """Every program and command: its name, the words before `--help`, and the function that takes them."""
    from swe_trainers import cli as trainer
    from swe_trainers.engines import serve_command
    from swegym_env import cli as environment

    for words in _subcommands(environment._parser()):
        yield "swegym", words, environment.main
    yield "swe-train", (), trainer.main
    for name in trainer._DIAGNOSES:
        yield "swe-train", (name,), trainer.main
    yield "swe-eval", (), trainer.main_eval
    yield "swe-eval", ("RUN",), trainer.main_eval
    yield "swe-eval", ("compare",), trainer.main_eval
    yield "swe-serve", (), serve_command.main


def _subcommands(parser: argparse.ArgumentParser, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield words
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from _subcommands(below, (*words, name))


def _help(main: Main, words: Sequence[str]) -> str:
    said = io.StringIO()
    columns = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "100"
    try:
        with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            main([*words, "--help"])
    finally:
        os.environ.pop("COLUMNS") if columns is None else os.environ.update(COLUMNS=columns)
    return said.getvalue().rstrip()


def configuration_page() -> str:
    """Every setting of `swe-train`, section by section."""
    from swe_trainers.algorithms.grpo import GroupRelative
    from swe_trainers.algorithms.reinforcement import Clipped, Reinforcement
    from swe_trainers.algorithms.settings import Settings
    from swe_trainers.run_config import ALGORITHMS, RunConfig

    parts = [_CONFIGURATION]
    parts.append("## The run\n\n" + _table(RunConfig, skip=_sections(RunConfig)))
    for name, kind in _sections(RunConfig).items():
        parts.append(f"## {name}\n\n{purpose(kind)}\n\n{_table(kind, skip=_sections(kind), prefix=name)}")
        for inner, section in _sections(kind).items():
            parts.append(f"### {name}.{inner}\n\n{purpose(section)}\n\n{_table(section, prefix=f'{name}.{inner}')}")
    parts.append(_TRAINER)
    shared = {
        "every algorithm": Settings,
        "every algorithm that plays episodes": Reinforcement,
        "every algorithm whose ratio is clipped": Clipped,
        "every algorithm that compares groups": GroupRelative,
    }
    known: dict[str, Any] = {}
    for what, kind in shared.items():
        parts.append(f"### trainer: {what}\n\n" + _table(kind, skip=known, prefix="trainer"))
        known |= _defaults(kind)
    for algorithm, kind in ALGORITHMS.items():
        base = next(each for each in reversed(shared.values()) if issubclass(kind, each))
        same = {name: None for name, value in _defaults(base).items() if _defaults(kind)[name] == value}
        own = _table(kind, skip={**same, "algorithm": None}, prefix="trainer")
        parts.append(f"### trainer: {algorithm}\n\n{purpose(kind)} What it has besides, or sets otherwise:\n\n{own}")
    return "\n".join(parts)


def _sections(kind: type) -> dict[str, type]:
    """The fields of a dataclass that are dataclasses themselves, the trainer's left out."""
    found = {}
    for name, hint in typing.get_type_hints(kind).items():
        for each in (hint, *typing.get_args(hint)):
            if dataclasses.is_dataclass(each) and isinstance(each, type) and name != "trainer":
                found[f"{name}[]" if typing.get_origin(hint) is tuple else name] = each
    return found


def _defaults(kind: type) -> dict[str, Any]:
    return {field.name: field.default for field in dataclasses.fields(kind)}


def _table(kind: type, *, skip: Any = (), prefix: str = "") -> str:
    described = field_docs(kind)
    hints = typing.get_type_hints(kind)
    rows = ["| key | type | default | |", "|---|---|---|---|"]
    for field in dataclasses.fields(kind):
        if field.name in skip or not field.init or (not prefix and field.name == "trainer"):
            continue
        key = f"{prefix}.{field.name}" if prefix else field.name
        text = described.get(field.name, "").replace("|", "\\|")
        rows.append(f"| `{key}` | {_type(hints[field.name])} | {_default(field)} | {text} |")
    return "\n".join(rows) + "\n" if len(rows) > 2 else "Nothing more.\n"


def _type(hint: Any) -> str:
    return say_type(hint).replace("|", "\\|")


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING:
        return "**required**" if field.default_factory is dataclasses.MISSING else "empty"
    value = field.default
    if value is None or isinstance(value, bool):
        return {None: "`null`", True: "`true`", False: "`false`"}[value]
    return "empty" if value == () else f"`{value}`"
