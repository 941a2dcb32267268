"""Screening for JavaScript: how closely a patch is examined, decided by what its added lines can do.

The code under test runs in the process of its tests and can replace whatever they call, so no list of names is
complete. What is listed are the ways to end, print, read, load or replace that a repair of a computation does not need,
and objects that decide themselves what they equal. Every patch that passes runs against negative controls in any case
(see `languages.javascript.controls`).
"""

from __future__ import annotations

import re
from pathlib import Path

from swegym_env.languages import CHANCE, Scrutiny
from swegym_env.repo.patches import parse_patch, without_sections

__all__ = ["scrutiny_of", "without_means"]

_MODULES = (
    r"fs|child_process|module|vm|v8|process|assert|worker_threads|inspector|repl|test|async_hooks|cluster|perf_hooks"
    r"|jest[-\w]*|@jest|mocha|chai|vitest|@vitest|expect|sinon|should|qunit|karma|ava|tap|jasmine"
)
_FORGING = re.compile(
    rf"""(?<![\w$])(process(?!\.env\.NODE_ENV\b)|globalThis|global|console|eval|Function|Reflect|Proxy|Module|Worker
        |assert\w*|expect|should|chai|sinon|jest|vi|vitest|mocha|Mocha|QUnit|karma|__karma__|jasmine|describe|__coverage__
        |__proto__|[sg]etPrototypeOf|__define[GS]etter__|__lookup[GS]etter__|callee|caller|asymmetricMatch|Symbol
        |defineProperty|defineProperties|prepareStackTrace|captureStackTrace|uncaughtException|unhandledRejection
        |createRequire|registerHooks|import\s*\(|import\.meta|with\s*\(|document\.write)(?![\w$])
        |(?<![\w$.])(?:it|test|specify|(?:before|after)(?:Each|All))\s*\(
        |\.constructor\b|["'`]constructor|\b(?:Object|Array|String|Number|Function|Promise|Error|RegExp|Map|Set|Boolean|Date
        |Node|Element|HTMLElement|Document|EventTarget)\.prototype(?:\.\w+|\[[^\]]*\])*\s*=(?!=)
        |\b(?:Object|Array|String|Number|JSON|Math|Promise|Error|Date)\.\w+\s*=(?!=)
        |\brequire\s*\(\s*(?!["'][^"']*["']\s*\))|\brequire(?!\s*\()|["'](?:node:)?(?:{_MODULES})(?:/[^"']*)?["']""",
    re.VERBOSE,
)
_READING = re.compile(
    r"""(?<![\w$])(process(?!\s*\.|\w)|process\s*\.\s*(?:binding|_linkedBinding|mainModule|getBuiltinModule|dlopen)|readFile(?:Sync)?|readlink(?:Sync)?|createReadStream|__filename|__dirname
        |XMLHttpRequest|fetch|currentScript|prepareStackTrace|captureStackTrace|callee|caller|eval|Function|Worker|Module
        |createRequire|globalThis|global|import\.meta|document\.(?:scripts|documentElement)|__karma__|mocha|Mocha)(?![\w$])
        |\.stack\b|\.constructor\b|["'`]constructor|\brequire(?!\s*\()|\brequire\s*\(\s*(?!["'][^"']*["']\s*\))|import\s*\(
        |["'](?:node:)?(?:fs|child_process|module|vm|v8|process|worker_threads|inspector|repl)(?:/[^"']*)?["']
        |/proc|/dev/|/sys/|["'][^"']*\.\./(?:tests?|__tests__|spec)\b""",
    re.VERBOSE,
)
# Names that are put together: `this["pro" + "cess"]`, escapes in identifiers, `String.fromCharCode`.
_HIDING = re.compile(
    r"\[[^\[\]]{0,80}[\"'`]\s*\+|\+\s*[\"'`][^\[\]]{0,80}\]|\[\s*`[^`]{0,80}\$\{"
    r"|\\u\{?[0-9a-fA-F]|\\x[0-9a-fA-F]|fromCharCode|fromCodePoint|\batob\b|\bunescape\b"
)
_COMMENT = re.compile(r"^\s*(?://|/\*|\*(?:\s|/|$))")
_LONG_LINE = 2000


def scrutiny_of(patch: str, base: Path, gold: str = "") -> Scrutiny:
    """See `Language.scrutiny_of`."""
    forging, reading = _means(patch)
    known = frozenset().union(*_means(gold))
    return Scrutiny(CHANCE, reads=bool(reading - known), required=bool((forging | reading) - known))


def without_means(patch: str, base: Path, gold: str = "") -> tuple[str, ...]:
    """See `Language.without_means`."""
    known = frozenset().union(*_means(gold))
    return without_sections(patch, lambda text: bool(frozenset().union(*_means(text)) - known))


def _means(patch: str) -> tuple[frozenset[str], frozenset[str]]:
    """The means of forgery, and those to read what the tests expect, that a patch adds; by their text."""
    forging: set[str] = set()
    reading: set[str] = set()
    for section in parse_patch(patch):
        if "GIT binary" in section.text or "\nnew mode" in section.header or "mode 120000" in section.header:
            forging.add("binary, link or mode")
        removed = {line[1:].strip() for line in section.body.split("\n") if line.startswith("-")}
        for line in section.body.split("\n"):
            if not line.startswith("+"):
                continue
            text = line[1:]
            if len(text) > _LONG_LINE:
                forging.add("a long line")
                text = text[:_LONG_LINE]
            if text.strip() in removed or (_COMMENT.match(text) and "*/" not in text.rstrip()[:-2]):
                continue
            for pattern in (_FORGING, _HIDING):
                forging |= {match[0] for match in pattern.finditer(text)}
            reading |= {match[0] for match in _READING.finditer(text)}
    return frozenset(forging), frozenset(reading)
