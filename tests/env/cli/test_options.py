"""What holds for all commands of `swegym`: an option means one thing, and examples are commands that exist."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator

import pytest

from swegym_env.cli.main import build_parser, main

SHARED = ("--jobs", "--repos", "--split", "--where", "--select", "--strict-rows")


def _commands(parser: argparse.ArgumentParser, path: str = "swegym") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    yield path, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from _commands(below, f"{path} {name}")


COMMANDS = dict(_commands(build_parser()))


def _written(text: str) -> list[str]:
    """The calls of `swegym` in lines of shell."""
    called = re.findall(r"(?:^|[;|]\s*)(?:[A-Z_]+=\S+ )?(?:\.venv/bin/)?swegym ([^;|#\n]+)", text, re.MULTILINE)
    return [one.strip() for one in called]


def test_shared_options_have_the_same_help_in_every_command() -> None:
    for name in SHARED:
        help_texts = {
            re.sub(r"default \d+", "", str(action.help))
            for parser in COMMANDS.values()
            for action in parser._actions
            if name in action.option_strings
        }
        assert len(help_texts) == 1, (name, help_texts)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_valid_example(command: str) -> None:
    parser = COMMANDS[command]
    assert parser.description
    if command == "swegym":
        return
    examples = _written((parser.epilog or "").removeprefix("example: "))
    assert examples and all(f"swegym {example} ".startswith(f"{command} ") for example in examples)
    for example in examples:
        build_parser().parse_args(shlex.split(example))


@pytest.mark.parametrize("command", ["tasks", "grade --patch gold", "certify", "export mini --output /no/where"])
def test_dataset_options_are_checked_by_every_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    for choice, message in (
        ("--where repo", "--where: expected FIELD=PATTERN"),
        ("--where color=red", "no text field 'color'"),
        ("--select few", "expected a slice"),
        ("--split none", "no split 'none'"),
    ):
        assert main([*command.split(), *choice.split()]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1
