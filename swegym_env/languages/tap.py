"""TAP, the Test Anything Protocol: results of tests as lines, in many languages.

See https://testanything.org/tap-version-13-specification.html.
"""

from __future__ import annotations

import re

from swegym_env.languages import RunnerReport

__all__ = ["parse_tap", "tap_report"]

_LINE = re.compile(r"^(?P<bad>not )?ok\b(?: (?P<number>\d+))?(?: -)?(?: (?P<name>.*?))?(?:\s+#\s*(?P<directive>.*))?$")
_PLAN = re.compile(r"^1\.\.(\d{1,9})(?:\s+#.*)?$")
_BAIL = re.compile(r"^Bail out!", re.MULTILINE)


def parse_tap(log: str) -> dict[str, str]:
    """Description of each test → status; one without a description has its number as name.

    `# SKIP` is SKIPPED; a failure with `# TODO` is expected: XFAIL. If a test occurs
    several times, one failure makes it FAILED; else the last status counts.
    """
    found: dict[str, str] = {}
    for line in log.split("\n"):
        match = _LINE.match(line.strip())
        if match is None or not (match["name"] or match["number"]):
            continue
        directive = (match["directive"] or "").upper()
        status = "FAILED" if match["bad"] else "PASSED"
        if directive.startswith("SKIP"):
            status = "SKIPPED"
        elif directive.startswith("TODO") and match["bad"]:
            status = "XFAIL"
        name = match["name"] or match["number"]
        found[name] = "FAILED" if found.get(name) == "FAILED" else status
    return found


def tap_report(log: str) -> RunnerReport | None:
    """What the plans of a log report; None if a stream of it has no plan, or more or fewer tests than planned.

    A log may have the streams of several programs, one after the other, each with its plan at its begin or its end.
    Subtests, which are indented, count where the plan of their suite holds.
    """
    streams: list[tuple[int | None, list[int]]] = []  # plan, numbers
    failed = bool(_BAIL.search(log))
    passed = 0
    for line in log.split("\n"):
        if plan := _PLAN.match(line):
            if streams and streams[-1][0] is None:
                streams[-1] = (int(plan[1]), streams[-1][1])
            else:
                streams.append((int(plan[1]), []))
        elif match := _LINE.match(line):
            number = int(match["number"] or 0)
            if not streams or (number == 1 and streams[-1][1]):
                streams.append((None, []))
            streams[-1][1].append(number)
            good = not match["bad"]
            passed += good
            failed = failed or (not good and not (match["directive"] or "").upper().startswith("TODO"))
    if not streams or any(plan is None or plan != len(numbers) for plan, numbers in streams):
        return None
    return RunnerReport(passed + _passed_in_suites(log), not failed)


def _passed_in_suites(log: str) -> int:
    """How many of the indented tests passed, in suites that have as many as their plan says."""
    passed = 0
    plans: dict[int, int] = {}  # indentation → the number of tests of a suite whose plan stands before them
    found: dict[int, list[bool]] = {}  # indentation → whether each test of the suite passed that stands there
    for line in log.split("\n"):
        text = line.lstrip(" ")
        depth = len(line) - len(text)
        if not depth:
            continue
        tests = found.setdefault(depth, [])
        if plan := _PLAN.match(text):
            plans[depth] = int(plan[1])
        elif match := _LINE.match(text):
            tests.append(not match["bad"])
        if tests and plans.get(depth) == len(tests):
            passed += sum(tests)
            del plans[depth], found[depth]
    return passed
