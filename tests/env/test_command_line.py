"""What holds for all commands of `swegym`: an option means one thing, and examples are commands that exist."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator

import pytest

from swegym_env.cli import _parser, main

SHARED = ("--jobs", "--repos", "--split", "--where", "--select", "--skip-bad-rows")


def _commands(parser: argparse.ArgumentParser, path: str = "swegym") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    yield path, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from _commands(below, f"{path} {name}")


COMMANDS = dict(_commands(_parser()))


def _written(text: str) -> list[str]:
    """The calls of `swegym` in lines of shell."""
    called = re.findall(r"(?:^|[;|]\s*)(?:[A-Z_]+=\S+ )?(?:\.venv/bin/)?swegym ([^;|#\n]+)", text, re.MULTILINE)
    return [one.strip() for one in called]


def test_options_of_one_name_say_the_same_in_every_command() -> None:
    for name in SHARED:
        said = {
            re.sub(r"default \d+", "", str(action.help))
            for parser in COMMANDS.values()
            for action in parser._actions
            if name in action.option_strings
        }
        assert len(said) == 1, (name, said)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_an_example_that_it_takes(command: str) -> None:
    parser = COMMANDS[command]
    assert parser.description
    if command == "swegym":
        return
    examples = _written((parser.epilog or "").removeprefix("example: "))
    assert examples and all(f"swegym {example} ".startswith(f"{command} ") for example in examples)
    for example in examples:
        _parser().parse_args(shlex.split(example))


@pytest.mark.parametrize("command", ["tasks", "grade --patch gold", "certify", "export mini --output /no/where"])
def test_every_command_on_tasks_chooses_them_alike(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    for choice, told in (
        ("--where repo", "--where: expected FIELD=PATTERN"),
        ("--where color=red", "no text field 'color'"),
        ("--select few", "expected a slice"),
        ("--split none", "no split 'none'"),
    ):
        assert main([*command.split(), *choice.split()]) == 2
        error = capsys.readouterr().err
        assert told in error and error.count("\n") == 1
