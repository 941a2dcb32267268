"""Registries that installed packages add to, by entry points in their metadata.

    [project.entry-points."swe_trainers.algorithms"]
    acme = "acme_learning.acme:Acme"

Nothing of such a package is imported before the name is used.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import cache
from importlib.machinery import PathFinder
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

__all__ = ["search_path_hint", "with_installed"]


def search_path_hint(module: str) -> str:
    """What an error adds where a missing module lies in the current directory, which commands do not search."""
    top = module.partition(".")[0]
    here = Path(f"{top}.py").is_file() or Path(top, "__init__.py").is_file()
    if not here or PathFinder.find_spec(top) is not None:
        return ""
    return f" ({top} is in this directory, where commands do not look for modules. Try: export PYTHONPATH=$PWD)"


def with_installed(group: str, built_in: Mapping[str, str]) -> dict[str, str]:
    """A registry: the entries of this package, then those that installed packages add.

    A name that is taken already is left out, with a warning: no package replaces what another one or this one has.

    Args:
        group: of the entry points, "swe_trainers.algorithms".
        built_in: name → "module:Class", of this package.
    """
    found = dict(built_in)
    for entry in sorted(_installed().select(group=group), key=lambda entry: (entry.name, entry.value)):
        taken = found.setdefault(entry.name, entry.value)
        if taken != entry.value:
            of = f" of {entry.dist.name}" if entry.dist else ""
            warnings.warn(f"{group}: {entry.name!r}{of} is left out: {taken} has this name", stacklevel=2)
    return found


@cache
def _installed() -> Any:  # of two types with the same `select`, by the version of Python
    return entry_points()
