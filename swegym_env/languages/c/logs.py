"""Logs of tests of C and C++: TAP, GoogleTest, doctest, CTest, Automake, and the runners of Redis and MicroPython.

Parsers named `parse_log_*` read as the SWE-bench harness does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from xml.etree import ElementTree

from swegym_env.languages import LogParser, RunnerReport
from swegym_env.languages.log_lines import parse_lines
from swegym_env.languages.tap import parse_tap, tap_report

__all__ = ["PARSERS", "REPOSITORY_PARSERS", "parser_of_command", "runner_report"]

_REDIS = re.compile(r"^\[(ok|err|skip|ignore)\]:\s(.+?)(?:\s\((\d+\s*m?s)\))?$")
_AUTOMAKE = re.compile(r"^\s*(PASS|FAIL):\s(.+)$")
_MICROPYTHON = re.compile(r"^(pass|FAIL|skip)\s+(.+)$")
_GOOGLETEST = re.compile(r"^.*\[\s*(OK|FAILED)\s*\]\s(.*)$")
_GOOGLETEST_TIME = re.compile(r"^(.*)\s\(.*\)$")
_CTEST = re.compile(r"^\s*\d+/\d+ Test\s+#\d+: (.+?) \.*\s*(Passed|\*\*\*.*?|Not Run.*?)\s+[\d.]+ sec")
_GOOGLETEST_END = re.compile(
    r"^\s*(?:\d+: )?\[==========\] (\d+) tests? from \d+ test (?:suites?|cases?) ran\.", re.MULTILINE
)
_GOOGLETEST_PASSED = re.compile(r"^\s*(?:\d+: )?\[  PASSED  \] (\d+) tests?\.", re.MULTILINE)
_GOOGLETEST_FAILED = re.compile(r"^\s*(?:\d+: )?\[  FAILED  \] (\d+) tests?, listed below", re.MULTILINE)


def parse_redis(log: str) -> dict[str, str]:
    """The lines of `runtest` of Redis and Valkey (`parse_log_redis`)."""
    found: dict[str, str] = {}
    for line in log.split("\n"):
        if match := _REDIS.match(line.strip()):
            status, name = match[1], match[2]
            if status == "err":
                words = name.rsplit(None, 2)  # a pattern for " in FILE" takes the square of the blanks
                name = words[0] if len(words) == 3 and words[1] == "in" and not name[-1].isspace() else name
            found[name] = {"ok": "PASSED", "err": "FAILED"}.get(status, "SKIPPED")
    return found


def parse_automake(log: str) -> dict[str, str]:
    """The lines of `make check` by Automake (`parse_log_jq`)."""
    return parse_lines(log, _AUTOMAKE, {"PASS": "PASSED", "FAIL": "FAILED"})


def parse_micropython(log: str) -> dict[str, str]:
    """The lines of MicroPython's `run-tests.py` (`parse_log_micropython_test`)."""
    return parse_lines(log, _MICROPYTHON, {"pass": "PASSED", "FAIL": "FAILED", "skip": "SKIPPED"})


def parse_googletest(log: str) -> dict[str, str]:
    """The lines of GoogleTest, also those that CTest repeats (`parse_log_googletest`)."""
    found: dict[str, str] = {}
    for line in log.split("\n"):
        text = line.strip()
        timed = _GOOGLETEST_TIME.match(text) if text.endswith(")") else None  # first, else it takes the square
        if timed and (match := _GOOGLETEST.match(timed[1])):
            found[match[2]] = "PASSED" if match[1] == "OK" else "FAILED"
    return found


def parse_ctest(log: str) -> dict[str, str]:
    """The lines of `ctest`: one for each test program."""
    found: dict[str, str] = {}
    for line in log.split("\n"):
        if match := _CTEST.match(line):
            skipped = "Skipped" in match[2] or "Disabled" in match[2]
            found[match[1]] = "PASSED" if match[2] == "Passed" else "SKIPPED" if skipped else "FAILED"
    return found


def parse_doctest(log: str) -> dict[str, str]:
    """The XML of `doctest -s -r=xml`: each subcase of a test case (`parse_log_doctest`)."""
    start = log.find("<doctest")
    end = log.find("</doctest>", start)
    if start < 0 or end < 0:
        return {}
    text = log[start : end + len("</doctest>")]
    if "<!" in text.replace("<![CDATA[", ""):  # no declaration of entities, which expand
        return {}
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError:
        return {}
    found: dict[str, str] = {}
    for case in root.iter("TestCase"):
        for subcase in case.iter("SubCase"):
            good = all(one.get("success") == "true" for one in subcase.iter("Expression"))
            found[f"{case.get('name')} > {subcase.get('name')}"] = "PASSED" if good else "FAILED"
    return found


PARSERS: Mapping[str, LogParser] = {
    "tap": parse_tap,
    "googletest": parse_googletest,
    "ctest": parse_ctest,
    "automake": parse_automake,
    "parse_log_redis": parse_redis,
    "parse_log_jq": parse_automake,
    "parse_log_doctest": parse_doctest,
    "parse_log_micropython_test": parse_micropython,
    "parse_log_googletest": parse_googletest,
}
REPOSITORY_PARSERS: Mapping[str, str] = {
    "redis/redis": "parse_log_redis",
    "jqlang/jq": "parse_log_jq",
    "nlohmann/json": "parse_log_doctest",
    "micropython/micropython": "parse_log_micropython_test",
    "valkey-io/valkey": "parse_log_redis",
    "fmtlib/fmt": "parse_log_googletest",
}


def parser_of_command(command: str) -> LogParser:
    """CTest's own lines for `ctest`, else TAP: programs that run by `make` have no common format."""
    return parse_ctest if re.search(r"\bctest\b", command) else parse_tap


def runner_report(log: str, parser: LogParser) -> RunnerReport | None:
    """The plans of TAP, or the last lines of GoogleTest's programs; None if one did not finish."""
    if parser is parse_tap:
        return tap_report(log)
    if parser is not parse_googletest:
        return None
    ran = len(_GOOGLETEST_END.findall(log))
    passed = [int(count) for count in _GOOGLETEST_PASSED.findall(log)]
    if not ran or len(passed) != ran:
        return None
    return RunnerReport(sum(passed), not _GOOGLETEST_FAILED.search(log))
