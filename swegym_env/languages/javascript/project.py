"""Projects of JavaScript and TypeScript for `making`: the scripts of package.json, and the tests of a file by name."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Collection, Mapping

from swegym_env.languages import ProjectCommands
from swegym_env.languages.javascript.source import SUFFIXES, Test, named_tests, read_tests

__all__ = ["find_test", "project_commands", "without_tests"]

_INSTALL = "npm install --ignore-scripts --no-audit --no-fund"
_PROGRAMS = 'export PATH="$PWD/node_modules/.bin:$PATH"'


def project_commands(files: Mapping[str, bytes]) -> ProjectCommands:
    """The script `test` of package.json, and npm's installation without the scripts of packages."""
    try:
        script = json.loads(files.get("package.json", b"{}"))["scripts"]["test"]
    except (ValueError, LookupError, TypeError):
        script = ""
    return ProjectCommands(f"{_PROGRAMS}; {script}" if isinstance(script, str) and script else "", (_INSTALL,))


def find_test(path: str, content: bytes, name: str) -> str:
    """See `Language.find_test`."""
    source = content.decode("utf-8", "replace")
    found = _named(path, source, (name,))
    if not found:
        return ""
    lines = source.splitlines(keepends=True)
    return textwrap.dedent("".join(lines[found[0].first_line - 1 : found[0].last_line])).rstrip()


def without_tests(path: str, content: bytes, names: Collection[str]) -> bytes:
    """See `Language.without_tests`. A test that shares a line with other code stays."""
    source = content.decode("utf-8", "surrogateescape")
    lines = source.splitlines(keepends=True)
    for test in sorted(_named(path, source, names), key=lambda one: -one.first_line):
        text = "".join(lines[test.first_line - 1 : test.last_line])
        if text.strip().endswith((")", ");")) and text.count("\n") >= 1:
            end = test.last_line + (test.last_line < len(lines) and not lines[test.last_line].strip())
            del lines[test.first_line - 1 : end]
    return "".join(lines).encode("utf-8", "surrogateescape")


def _named(path: str, source: str, names: Collection[str]) -> tuple[Test, ...]:
    if not path.endswith(SUFFIXES):
        return ()
    tests = read_tests(path, source)
    return tuple({id(test): test for name in names for test in named_tests(tests, name)}.values())
