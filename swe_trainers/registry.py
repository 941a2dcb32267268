"""Registries that installed packages add to, by entry points in their metadata.

    [project.entry-points."swe_trainers.algorithms"]
    acme = "acme_learning.acme:Acme"

Nothing of such a package is imported before the name is used.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Any

__all__ = ["with_installed"]


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
