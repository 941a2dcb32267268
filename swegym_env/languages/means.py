"""Screening by means of forgery, for languages that list what a patch adds (`AddedMeans`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from swegym_env.languages import CHANCE, Scrutiny
from swegym_env.repo.patches import without_sections

__all__ = ["AddedMeans", "parts_without_means", "scrutiny_by_means"]

AddedMeans = Callable[[str, Path], tuple[frozenset[str], frozenset[str]]]
"""From a patch and the repository at the base commit to the means of forgery that it adds: those that cannot read what
the tests expect, and those that may."""


def scrutiny_by_means(added: AddedMeans, patch: str, base: Path, gold: str) -> Scrutiny:
    """See `Language.scrutiny_of`: by the means that the patch adds and the gold patch does not."""
    forging, reading = added(patch, base)
    known = frozenset().union(*added(gold, base))
    return Scrutiny(CHANCE, reads=bool(reading - known), required=bool((forging | reading) - known))


def parts_without_means(added: AddedMeans, patch: str, base: Path, gold: str) -> tuple[str, ...]:
    """See `Language.without_means`."""
    known = frozenset().union(*added(gold, base))
    return without_sections(patch, lambda text: bool(frozenset().union(*added(text, base)) - known))
