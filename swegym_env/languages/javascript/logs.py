"""Logs of tests of JavaScript and TypeScript: mocha, Jest, Vitest, Karma, QUnit.

Parsers named `parse_log_*` return the same as those of the SWE-bench harness.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from swegym_env.languages import LogParser, RunnerReport
from swegym_env.languages.log_lines import parse_lines
from swegym_env.languages.tap import parse_tap, tap_report

__all__ = ["PARSERS", "REPOSITORY_PARSERS", "parser_of_command", "runner_report"]

_TAP = re.compile(r"^(ok|not ok) \d+ (.+)$")
_JEST = re.compile(r"^(✓|✕|○)\s(.+?)(?:\s\(\d+\s*m?s\))?$")
_JEST_JSON = re.compile(r"^\[(PASSED|FAILED)\]\s(.+)$")
_VITEST = re.compile(r"^(✓|×|↓)\s(.+?)(?:\s(?:\d+\s*m?s?|\[skipped\]))?$")
_KARMA = re.compile(r"^(\s*)([✔✖])?\s(.*)$")
_MOCHA = re.compile(r"^(?P<indent> +)(?:(?P<mark>[✓✔√-]|\d+\)) )?(?P<name>\S.*?)(?: \(\d+ms\))?$")
_MOCHA_END = re.compile(r"^  (\d+) (passing|failing)\b", re.MULTILINE)
_JEST_END = re.compile(r"^(Test Suites|Tests): +((?:\d+ \w+, )*\d+ total)$", re.MULTILINE)
_VITEST_END = re.compile(r"^ *(Test Files|Tests|Errors|Type Errors)  (\d.*|no tests)$", re.MULTILINE)
_KARMA_END = re.compile(r"^SUMMARY:\n(?:[✔ℹ✖] .*\n?)+", re.MULTILINE)
_COUNT = re.compile(r"(\d+) (?:tests? )?(passed|completed|failed|errors?)\b")

_PASSED, _FAILED, _SKIPPED = "PASSED", "FAILED", "SKIPPED"


def parse_harness_tap(log: str) -> dict[str, str]:
    """Lines of TAP with number and description; the text after a `#` belongs to the name (`parse_log_tap`)."""
    return parse_lines(log, _TAP, {"ok": _PASSED, "not ok": _FAILED})


def parse_jest(log: str) -> dict[str, str]:
    """The lines of `jest --verbose`, by the test's own name without its suites (`parse_log_jest`)."""
    return parse_lines(log, _JEST, {"✓": _PASSED, "✕": _FAILED, "○": _SKIPPED})


def parse_jest_json(log: str) -> dict[str, str]:
    """The lines that a script prints from `jest --json`, with the suites (`parse_log_jest_json`)."""
    return parse_lines(log, _JEST_JSON, {"PASSED": _PASSED, "FAILED": _FAILED})


def parse_immutable(log: str) -> dict[str, str]:
    """Either of two formats of Jest; the rows of Immutable.js use both (`parse_log_immutable_js`)."""
    return parse_jest_json(log) or parse_jest(log)


def parse_vitest(log: str) -> dict[str, str]:
    """The lines of `vitest --reporter=verbose` (`parse_log_vitest`)."""
    return parse_lines(log, _VITEST, {"✓": _PASSED, "×": _FAILED, "↓": _SKIPPED})


def parse_karma(log: str) -> dict[str, str]:
    """The tree that karma-mocha-reporter prints after the browser has started (`parse_log_karma`).

    A line without a mark counts as a suite, even if a test printed it.
    """
    found: dict[str, str] = {}
    suites: list[str] = []
    indent, started = -1, False
    for line in log.split("\n"):
        if line.startswith("SUMMARY:"):
            break
        if "Starting browser" in line:
            started = True
            continue
        match = _KARMA.match(line) if started else None
        if match is None:
            continue
        depth, mark, name = len(match[1]), match[2], match[3]
        if mark:
            found[" > ".join([*suites, name])] = _PASSED if mark == "✔" else _FAILED
        elif depth > indent and depth:
            indent = depth
            suites.append(name)
        elif 0 < depth < indent:
            indent = depth
            del suites[-1:]
    return found


def parse_mocha(log: str) -> dict[str, str]:
    """The tree of mocha's reporter `spec`, up to its counts: suites and test, joined by " > "."""
    found: dict[str, str] = {}
    suites: list[tuple[int, str]] = []
    for line in log.split("\n"):
        if _MOCHA_END.match(line):
            break
        match = _MOCHA.match(line.rstrip())
        if match is None:
            continue
        indent, mark = len(match["indent"]), match["mark"]
        while suites and suites[-1][0] >= indent:
            suites.pop()
        if mark is None:
            suites.append((indent, match["name"]))
            continue
        name = " > ".join([*(suite for _, suite in suites), match["name"]])
        status = _SKIPPED if mark == "-" else _FAILED if mark.endswith(")") else _PASSED
        found[name] = _FAILED if found.get(name) == _FAILED else status
    return found


PARSERS: Mapping[str, LogParser] = {
    "mocha": parse_mocha,
    "jest": parse_jest,
    "vitest": parse_vitest,
    "karma": parse_karma,
    "parse_log_tap": parse_harness_tap,
    "parse_log_jest": parse_jest,
    "parse_log_jest_json": parse_jest_json,
    "parse_log_immutable_js": parse_immutable,
    "parse_log_vitest": parse_vitest,
    "parse_log_karma": parse_karma,
}
REPOSITORY_PARSERS: Mapping[str, str] = {
    "axios/axios": "parse_log_tap",
    "babel/babel": "parse_log_jest",
    "facebook/docusaurus": "parse_log_jest",
    "immutable-js/immutable-js": "parse_log_immutable_js",
    "mrdoob/three.js": "parse_log_tap",
    "preactjs/preact": "parse_log_karma",
    "vuejs/core": "parse_log_vitest",
}


def parser_of_command(command: str) -> LogParser:
    """The parser for the runner in the command; if it names none, TAP, which `node --test` and QUnit print."""
    for name in ("vitest", "jest", "karma", "mocha"):
        if re.search(rf"\b{name}\b", command):
            tap = name == "mocha" and re.search(r"(-R|--reporter)[ =]tap\b", command)
            return parse_harness_tap if tap else PARSERS[name]
    return parse_tap


def runner_report(log: str, parser: LogParser) -> RunnerReport | None:
    """The counts that the runner prints at its end; None if there are none."""
    reader = _REPORTS.get(parser)
    readers = [reader] if reader else [tap_report, _jest_report, _vitest_report, _karma_report, _mocha_report]
    return next((report for read in readers if (report := read(log)) is not None), None)


def _mocha_report(log: str) -> RunnerReport | None:
    counts = {match[2]: int(match[1]) for match in _MOCHA_END.finditer(log)}
    return RunnerReport(counts["passing"], not counts.get("failing")) if "passing" in counts else None


def _jest_report(log: str) -> RunnerReport | None:
    return _counted([match[1] + " " + match[2] for match in _JEST_END.finditer(log)])


def _vitest_report(log: str) -> RunnerReport | None:
    lines = [match[1] + " " + match[2] for match in _VITEST_END.finditer(log)]
    report = _counted(lines)
    return report and RunnerReport(report.passed_at_most, report.success and not any("Errors" in one for one in lines))


def _karma_report(log: str) -> RunnerReport | None:
    return _counted(["Tests " + match[0] for match in _KARMA_END.finditer(log)])


def _counted(lines: list[str]) -> RunnerReport | None:
    """The counts in lines such as "Tests 1 failed, 2 passed"; lines for files and suites only tell if one failed."""
    if not any(line.startswith("Tests ") for line in lines):
        return None
    counts = [(line, int(count), word) for line in lines for count, word in _COUNT.findall(line)]
    passed = [n for line, n, word in counts if line.startswith("Tests ") and word in ("passed", "completed")]
    return RunnerReport(sum(passed), not any(n for _, n, word in counts if word not in ("passed", "completed")))


_REPORTS: Mapping[LogParser, Callable[[str], RunnerReport | None]] = {
    parse_tap: tap_report,
    parse_harness_tap: tap_report,
    parse_jest: _jest_report,
    parse_vitest: _vitest_report,
    parse_karma: _karma_report,
    parse_mocha: _mocha_report,
}
