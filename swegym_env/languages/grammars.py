"""Tree-sitter grammars: to parse sources, and to check the syntax of an edit inside a sandbox.

Each language names the grammars of its files (`Language.grammars`); they are packages of the extra `grammars`. A
package is compiled for one version of Python, which few images have. So the interpreter of this process comes with it
into the sandbox, in a layer; where it cannot run (an image with an older C library), nothing is checked.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from swegym_env.errors import ConfigurationError, install_hint
from swegym_env.languages import all_languages
from swegym_env.languages.python.interpreters import Interpreter, interpreter_layer
from swegym_env.sandbox.identity import own
from swegym_env.sandbox.layers import LayerStore

if TYPE_CHECKING:
    from tree_sitter import Parser

__all__ = ["SYNTAX", "parser", "syntax_layers"]

SYNTAX = "/opt/swegym/syntax"
"""Where a sandbox has `python`, the packages with the grammars, and `grammars.json`: suffix → grammars."""


@cache
def parser(grammar: str) -> Parser:
    """The parser of a grammar, "package:function".

    Raises:
        ConfigurationError: tree-sitter or the grammar is not installed.
    """
    package, _, function = grammar.partition(":")
    try:
        import tree_sitter

        language = getattr(import_module(package), function)
    except ImportError as error:
        raise ConfigurationError(f"{package} is needed to read sources: {error}. {install_hint('grammars')}") from error
    return tree_sitter.Parser(tree_sitter.Language(language()))


def syntax_layers(store: LayerStore) -> tuple[Path, ...]:
    """The layers with the installed grammars of all languages, at `SYNTAX`, and an interpreter for them, bottom first.

    None where no grammar is installed.
    """
    named = {suffix: names for language in all_languages() for suffix, names in language.grammars.items()}
    found = {suffix: [name for name in names if _is_installed(name)] for suffix, names in named.items()}
    grammars = {suffix: names for suffix, names in found.items() if names}
    if not grammars:
        return ()
    python = Interpreter(platform.python_version(), Path(sys.base_prefix), Path(os.path.realpath(sys.executable)))
    packages = sorted({"tree_sitter", *(name.partition(":")[0] for names in grammars.values() for name in names)})
    versions = [f"{package}={metadata.version(package.replace('_', '-'))}" for package in packages]

    def copy(layer: Path) -> None:
        _copy(layer / SYNTAX.lstrip("/"), python.executable, packages, grammars)
        for directory, _, files in os.walk(layer):
            own(Path(directory))
            for name in files:
                own(Path(directory, name))

    below = interpreter_layer(python, store)
    layer = store.get_or_build(
        ("syntax", str(python.executable), python.version, *versions, json.dumps(grammars)), copy
    )
    return (layer,) if below is None else (below, layer)


def _is_installed(grammar: str) -> bool:
    return all(find_spec(package) is not None for package in ("tree_sitter", grammar.partition(":")[0]))


def _copy(place: Path, python: Path, packages: list[str], grammars: Mapping[str, list[str]]) -> None:
    place.mkdir(parents=True)
    for package in packages:
        spec = find_spec(package)
        assert spec is not None and spec.origin is not None  # it is installed
        shutil.copytree(
            Path(spec.origin).parent, place / package, ignore=shutil.ignore_patterns("__pycache__", "queries", "*.c")
        )
    (place / "python").symlink_to(python)
    (place / "grammars.json").write_text(json.dumps(grammars))
