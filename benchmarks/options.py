"""Checks of the command lines of benchmarks, before anything is measured."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from pathlib import Path

__all__ = ["chosen_of", "require_python"]


def chosen_of(parser: argparse.ArgumentParser, option: str, names: str | None, known: Collection[str]) -> list[str]:
    """The names of an option, separated by commas; all that are known if it was not given. Others are an error."""
    chosen = names.split(",") if names else list(known)
    for name in chosen:
        if name not in known:
            parser.error(f"{option}: no {name!r}; there are {', '.join(known)}")
    return chosen


def require_python(parser: argparse.ArgumentParser, option: str, python: Path) -> None:
    """End with an error if the environment of the peers is missing."""
    if not python.exists():
        parser.error(f"{option}: there is no {python}. Try: scripts/test_adapter.sh peers --make")
