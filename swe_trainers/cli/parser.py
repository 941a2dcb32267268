"""The parser of the commands: a wrong argument is reported in one line, with what was probably meant."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from swe_trainers import __version__

__all__ = ["Parser"]


class Parser(argparse.ArgumentParser):
    """Reports errors in one line; every command has `--debug` and `--version`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **settings)
        self._given: list[str] = []
        self.add_argument("--debug", action="store_true", help="show the traceback of an error")
        self.add_argument("--version", action="version", version=f"%(prog)s {__version__}")

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """See `argparse`."""
        self._given = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(self._given, namespace)

    @property
    def names(self) -> list[str]:
        """The options, such as `--debug`."""
        return list(self._option_string_actions)

    def error(self, message: str) -> NoReturn:
        """Exit with 2. An option that does not exist, but nearly, is named before what is missing without it."""
        names = (word.partition("=")[0] for word in self._given if word.startswith("--") and "." not in word)
        unknown = next((name for name in names if name not in self.names), None)
        if unknown is not None and (close := difflib.get_close_matches(unknown, self.names, n=1)):
            message = f"{unknown}: no such option; did you mean {close[0]}?"
        self.exit(2, f"{self.prog}: {message}{'' if message.endswith('?') else '.'} Try: {self.prog} --help\n")
