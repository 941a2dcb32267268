"""Objects named by "module:attribute": the entries of registries, and what users write for objects of their own.

An installed package adds to a registry by an entry point in its metadata, and nothing of it is imported before the name
is used:

    [project.entry-points."swegym_env.sandboxes"]
    acme = "acme_sandboxes.backend:AcmeBackend"
"""

from __future__ import annotations

import pkgutil
import warnings
from collections.abc import Mapping
from functools import cache
from importlib.machinery import PathFinder
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from swegym_env.errors import ConfigurationError

__all__ = ["resolve", "search_path_hint", "with_installed"]


def resolve(place: str, what: str) -> Any:
    """Import the object at `place`.

    Args:
        place: "package.module:attribute".
        what: what the object is, for the error message: "action format".

    Raises:
        ConfigurationError: `place` has another form, or there is no such module or attribute.
    """
    module, _, attribute = place.partition(":")
    if not module or not attribute:
        raise ConfigurationError(f"{what}: expected 'module:attribute', got {place!r}")
    try:
        return pkgutil.resolve_name(place)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"{what} {place!r} cannot be imported: {error}{search_path_hint(module)}") from error


def search_path_hint(module: str) -> str:
    """What an error adds where a missing module lies in the current directory, which commands do not search."""
    top = module.partition(".")[0]
    here = Path(f"{top}.py").is_file() or Path(top, "__init__.py").is_file()
    if not here or PathFinder.find_spec(top) is not None:
        return ""
    return f" ({top} is in this directory, where commands do not look for modules. Try: export PYTHONPATH=$PWD)"


def with_installed(group: str, built_in: Mapping[str, str], *, before: bool = False) -> dict[str, str]:
    """A registry: the entries of this package, and those that installed packages add.

    A name that is taken already is left out, with a warning: no package replaces what another one or this one has.

    Args:
        group: of the entry points, "swegym_env.sandboxes".
        built_in: name → "module:attribute", of this package.
        before: the added entries come first, where the first that fits is taken.
    """
    added: dict[str, str] = {}
    for entry in sorted(_installed().select(group=group), key=lambda entry: (entry.name, entry.value)):
        taken = added.get(entry.name) or built_in.get(entry.name)
        if taken == entry.value:
            continue
        if taken is not None:
            of = f" of {entry.dist.name}" if entry.dist else ""
            warnings.warn(f"{group}: {entry.name!r}{of} is left out: {taken} has this name", stacklevel=2)
            continue
        added[entry.name] = entry.value
    return {**added, **built_in} if before else {**built_in, **added}


@cache
def _installed() -> Any:  # of two types with the same `select`, by the version of Python
    return entry_points()
