"""Objects named by "module:attribute": the entries of registries, and what users write for objects of their own."""

from __future__ import annotations

import pkgutil
from typing import Any

from swegym_env.errors import ConfigurationError

__all__ = ["resolve"]


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
        raise ConfigurationError(f"{what} {place!r} cannot be imported: {error}") from error
