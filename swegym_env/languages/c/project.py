"""Projects of C and C++ for `making`: the target that runs their tests, and the tests of a file by name."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from swegym_env.languages import ProjectCommands
from swegym_env.languages.c.source import Function, functions, is_named

__all__ = ["find_test", "project_commands", "without_tests"]

_TARGET = re.compile(r"^(test|check)\s*:", re.MULTILINE)


def project_commands(files: Mapping[str, bytes]) -> ProjectCommands:
    """`make test` or `make check`, if the Makefile has that target."""
    for name in ("GNUmakefile", "makefile", "Makefile"):
        targets = _TARGET.findall(files.get(name, b"").decode("utf-8", "replace"))
        if targets:
            return ProjectCommands(f"make {'test' if 'test' in targets else 'check'}")
    return ProjectCommands("")


def find_test(content: bytes, name: str) -> str:
    """See `Language.find_test`."""
    source = content.decode("utf-8", "replace")
    for function in functions(source):
        if is_named(function.name, name):
            return source[_start(source, function) : function.end]
    return ""


def without_tests(content: bytes, names: Collection[str]) -> bytes:
    """See `Language.without_tests`: functions, and the lines that only call or list them.

    A function that is also used in another way is kept.
    """
    source = content.decode("utf-8", "surrogateescape")
    for function in functions(source):
        if any(is_named(function.name, name) for name in names):
            source = _without(source, function.name)
    return source.encode("utf-8", "surrogateescape")


def _without(source: str, name: str) -> str:
    function = next(one for one in functions(source) if one.name == name)
    end = source.find("\n", function.end) + 1 or len(source)
    if source[end : end + 1] == "\n":
        end += 1
    rest = source[: _start(source, function)] + source[end:]
    if not re.fullmatch(r"\w+", name):  # of a macro, which registers the test by itself
        return rest
    words = r"[\w \t(){}&,\"]*"
    only = rf"^(?!.*\b(?:if|while|return)\b){words}\b{name}\b{words}[;,]?[ \t]*\n"
    rest = re.sub(only, "", rest, flags=re.MULTILINE)
    return source if re.search(rf"\b{name}\b", rest) else rest


def _start(source: str, function: Function) -> int:
    """The offset of the line at which a function's head begins: its return type may be on a line of its own."""
    start = source.rfind("\n", 0, function.begin) + 1
    while start:
        before = source[source.rfind("\n", 0, start - 1) + 1 : start].strip()
        if not re.fullmatch(r"[\w \t*]+", before):
            break
        start = source.rfind("\n", 0, start - 1) + 1
    return start
