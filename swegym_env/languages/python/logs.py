"""Logs of pytest, unittest and the runners of Django and SymPy: the status of each test, and the final report.

The published lists FAIL_TO_PASS and PASS_TO_PASS contain the output of the parsers of the SWE-bench harness, with their
special cases: a pytest name ends at its first blank (`test_make_error[required-Missing`), and the last line that names
a test counts. The parsers below return the same as those of the harness, which each docstring names.

A log is written by the code under test, which may be hostile: every parser accepts any text, in time that is linear in
its length.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from swegym_env.languages import LogParser, RunnerReport

__all__ = [
    "PARSERS",
    "REPOSITORY_PARSERS",
    "parse_json_report",
    "parse_matplotlib",
    "parse_pytest",
    "parse_pytest_clean",
    "parse_pytest_options",
    "parse_r2e_gym",
    "parse_seaborn",
    "parse_sympy",
    "parse_unittest",
    "parse_verbose_runner",
    "runner_report",
]

_STATUSES = ("FAILED", "PASSED", "SKIPPED", "ERROR", "XFAIL")


def parse_pytest(log: str) -> dict[str, str]:
    """The summary lines of `pytest -rA` (`PASSED tests/test_x.py::test_y`); a name ends at its first blank.

    Equal to the harness's `parse_log_pytest`. A skipped test is listed by pytest without its name, so it is absent.
    """
    found: dict[str, str] = {}
    for line in log.split("\n"):
        if line.startswith(_STATUSES):
            words = (line.replace(" - ", " ") if line.startswith("FAILED") else line).split()
            if len(words) > 1:
                found[words[1]] = words[0]
    return found


def parse_pytest_options(log: str) -> dict[str, str]:
    """`parse_pytest`, a parameter that is a path reduced to its last component (`parse_log_pytest_options`)."""
    found: dict[str, str] = {}
    for name, status in parse_pytest(log).items():
        main, bracket, option = name.partition("[")
        option, closed, _ = option.rpartition("]")
        if bracket and closed:
            if option.startswith("/") and not option.startswith("//") and "*" not in option:
                option = "/" + option.split("/")[-1]
            name = f"{main}[{option}]"
        found[name] = status
    return found


_COLOUR = re.compile(r"\[(\d+)m")
_CONTROLS = str.maketrans("", "", "".join(map(chr, range(1, 32))))


def parse_pytest_clean(log: str) -> dict[str, str]:
    """`parse_pytest` on a log with colours or of an old pytest, lines ending in the status (`parse_log_pytest_v2`)."""
    found: dict[str, str] = {}
    for raw in log.split("\n"):
        line = _COLOUR.sub("", raw).translate(_CONTROLS)
        if line.startswith(_STATUSES):
            words = (line.replace(" - ", " ") if line.startswith("FAILED") else line).split()
            if len(words) > 1:
                found[words[1]] = words[0]
        elif line.endswith(_STATUSES):
            words = line.split()
            if len(words) > 1:
                found[words[0]] = words[1]
    return found


_UNITTEST_START = re.compile(r"(?:^|(?<=\.\.\. ))(?P<method>\w+) \((?P<place>[\w.<>]+)\)(?= \.\.\.|$)")
_UNITTEST_SECTION = re.compile(r"^(?P<kind>ERROR|FAIL|UNEXPECTED SUCCESS): (?P<method>\w+) \((?P<place>[\w.<>]+)\)")
_UNITTEST_ENDINGS = (
    (re.compile(r"\bok$"), "PASSED"),
    (re.compile(r"\bFAIL$"), "FAILED"),
    (re.compile(r"\bERROR$"), "ERROR"),
    (re.compile(r"\bskipped(\s+['\"].*)?$"), "SKIPPED"),
    (re.compile(r"\bexpected failure$"), "XFAIL"),
    (re.compile(r"\bunexpected success$"), "FAILED"),
)


def parse_unittest(log: str) -> dict[str, str]:
    """The lines of `python -m unittest -v`, names as `module.Class.method` whatever the version of Python.

    Python up to 3.10 prints `method (module.Class)`, later versions `method (module.Class.method)`. A docstring is on a
    separate line, followed by the outcome; output of the test may come between. A module that cannot be imported is an
    ERROR of `unittest.loader._FailedTest.NAME`. A failing subtest makes its test FAILED.
    """
    found: dict[str, str] = {}
    pending: str | None = None
    for line in log.split("\n"):
        section = _UNITTEST_SECTION.match(line)
        if section:
            name = _dotted(section["method"], section["place"])
            found[name] = "ERROR" if section["kind"] == "ERROR" else "FAILED"
            pending = None
            continue
        for started in _UNITTEST_START.finditer(line):  # after failed subtests the next test is on the same line
            pending = _dotted(started["method"], started["place"])
        if pending is None:
            continue
        for ending, status in _UNITTEST_ENDINGS:
            if ending.search(line.rstrip()):
                # The failure of a subtest may be recorded already; no "ok" is then printed for the parent test.
                found.setdefault(pending, status)
                pending = None
                break
    return found


def _dotted(method: str, place: str) -> str:
    return place if place.rpartition(".")[2] == method else f"{place}.{method}"


def parse_verbose_runner(log: str) -> dict[str, str]:
    """The lines of a verbose unittest, named by the text before ` ... ` as in Django's lists (`parse_log_django`)."""
    found: dict[str, str] = {}
    previous: str | None = None
    for raw in log.split("\n"):
        line = raw.strip()
        if "--version is equivalent to version" in line:
            found["--version is equivalent to version"] = "PASSED"
        if " ... " in line:
            previous = line.split(" ... ")[0]
        for suffix in (" ... ok", " ... OK", " ...  OK"):
            if line.endswith(suffix):
                if line.startswith("Applying sites.0002_alter_domain_unique...test_no_migrations"):
                    line = line.split("...", 1)[-1].strip()
                found[line.rsplit(suffix, 1)[0]] = "PASSED"
                break
        if " ... skipped" in line:
            found[line.split(" ... skipped")[0]] = "SKIPPED"
        for word, status in (("FAIL", "FAILED"), ("ERROR", "ERROR")):
            if line.endswith(f" ... {word}"):
                found[line.split(f" ... {word}")[0]] = status
            if line.startswith(f"{word}:") and len(line.split()) > 1:
                found[line.split()[1]] = status
        if line.startswith("ok") and previous is not None:
            found[previous] = "PASSED"
    for start, end in _INTERRUPTED:
        position = 0
        while (begun := start.search(log, position)) and (ended := end.search(log, begun.end())):
            found[begun[1]] = "PASSED"
            position = ended.end()
    return found


# Lines in which other output of Django's tests comes between the name and "ok".
_INTERRUPTED = (
    (
        re.compile(r"^(.*?)\s\.\.\.\sTesting against Django installed in ", re.MULTILINE),
        re.compile(r" silenced\)\.\nok$", re.MULTILINE),
    ),
    (
        re.compile(r"^(.*?)\s\.\.\.\sInternal Server Error: /.*/(?=\nok$)", re.MULTILINE),
        re.compile(r"\nok$", re.MULTILINE),
    ),
    (
        re.compile(r"^(.*?)\s\.\.\.\sSystem check identified no issues \(0 silenced\)(?=\nok$)", re.MULTILINE),
        re.compile(r"\nok$", re.MULTILINE),
    ),
)


def parse_matplotlib(log: str) -> dict[str, str]:
    """`parse_pytest`, with two parameters printed as numbers, as in the lists; newer Pythons print their names."""
    return parse_pytest(log.replace("MouseButton.LEFT", "1").replace("MouseButton.RIGHT", "3"))


def parse_seaborn(log: str) -> dict[str, str]:
    """Passed and failed tests of a summary or of a verbose pytest; nothing else counts (`parse_log_seaborn`)."""
    found: dict[str, str] = {}
    for line in log.split("\n"):
        words = line.split()
        if len(words) < 2:
            continue
        if line.startswith("FAILED"):
            found[words[1]] = "FAILED"
        elif " PASSED " in line:
            if words[1] == "PASSED":
                found[words[0]] = "PASSED"
        elif line.startswith("PASSED"):
            found[words[1]] = "PASSED"
    return found


def parse_r2e_gym(log: str) -> dict[str, str]:
    """The summary lines of `pytest -rA`, with names as in R2E-Gym's lists: without the file, with dots."""
    _, _, summary = log.rpartition("short test summary info")
    found: dict[str, str] = {}
    for line in summary.split("\n"):
        status, _, rest = line.partition(" ")
        if status in _STATUSES and "::" in rest:
            found[rest.partition("::")[2].replace("::", ".").partition(" - ")[0].rstrip()] = status
    return found


def parse_sympy(log: str) -> dict[str, str]:
    """The lines of SymPy's own runner, functions by their bare names (`parse_log_sympy`)."""
    found: dict[str, str] = {}
    lines = log.split("\n")
    for line in lines:  # the harness's pattern is `_* (.*)\.py:(.*) _*`
        first, last = line.find(" "), line.rfind(" ")
        suffix = line.rfind(".py:", first + 1, last)
        if 0 <= first < suffix:
            found[line[first + 1 : last]] = "FAILED"
    for line in map(str.strip, lines):
        if line.startswith("test_"):
            for ending, status in ((" E", "ERROR"), (" F", "FAILED"), (" ok", "PASSED")):
                if line.endswith(ending):
                    found[line.split()[0]] = status
    return found


def parse_json_report(log: str) -> dict[str, str]:
    """The tests of SWE-bench Pro's reports, `{"tests": [{"name": …, "status": …}]}` after the line of the report."""
    _, found, report = log.rpartition(">>>>> Test Report\n")
    if not found:
        return {}
    try:
        tests = json.loads(report)["tests"]
        return {str(test["name"]): str(test["status"]).upper() for test in tests}
    except (ValueError, RecursionError, LookupError, TypeError):
        return {}


PARSERS: Mapping[str, LogParser] = {
    "pytest": parse_pytest,
    "unittest": parse_unittest,
    "parse_log_pytest": parse_pytest,
    "parse_log_pytest_options": parse_pytest_options,
    "parse_log_pytest_v2": parse_pytest_clean,
    "parse_log_astroid": parse_pytest,
    "parse_log_flask": parse_pytest,
    "parse_log_marshmallow": parse_pytest,
    "parse_log_pvlib": parse_pytest,
    "parse_log_pyvista": parse_pytest,
    "parse_log_sqlfluff": parse_pytest,
    "parse_log_xarray": parse_pytest,
    "parse_log_pydicom": parse_pytest_options,
    "parse_log_requests": parse_pytest_options,
    "parse_log_pylint": parse_pytest_options,
    "parse_log_astropy": parse_pytest_clean,
    "parse_log_scikit": parse_pytest_clean,
    "parse_log_sphinx": parse_pytest_clean,
    "parse_log_django": parse_verbose_runner,
    "parse_log_matplotlib": parse_matplotlib,
    "parse_log_seaborn": parse_seaborn,
    "parse_log_sympy": parse_sympy,
    "r2e_gym": parse_r2e_gym,
    "json_report": parse_json_report,
}
# Rows of newer datasets name their parser explicitly.
REPOSITORY_PARSERS: Mapping[str, str] = {
    "astropy/astropy": "parse_log_astropy",
    "django/django": "parse_log_django",
    "marshmallow-code/marshmallow": "parse_log_marshmallow",
    "matplotlib/matplotlib": "parse_log_matplotlib",
    "mwaskom/seaborn": "parse_log_seaborn",
    "pallets/flask": "parse_log_flask",
    "psf/requests": "parse_log_requests",
    "pvlib/pvlib-python": "parse_log_pvlib",
    "pydata/xarray": "parse_log_xarray",
    "pydicom/pydicom": "parse_log_pydicom",
    "pylint-dev/astroid": "parse_log_astroid",
    "pylint-dev/pylint": "parse_log_pylint",
    "pytest-dev/pytest": "parse_log_pytest",
    "pyvista/pyvista": "parse_log_pyvista",
    "scikit-learn/scikit-learn": "parse_log_scikit",
    "sphinx-doc/sphinx": "parse_log_sphinx",
    "sqlfluff/sqlfluff": "parse_log_sqlfluff",
    "sympy/sympy": "parse_log_sympy",
}


_PYTEST_END = re.compile(
    r"^=*[ ]*((?:\d{1,9} [a-z]+(?:, )?)+) in [\d.]+ ?s(?:econds)?(?: \([\d:]+\))?[ ]*=*$", re.MULTILINE
)
_PYTEST_SUMMARY = re.compile(r"^=+ short test summary info =+$", re.MULTILINE)
_ANSI_COLOUR = re.compile(r"\x1b\[[\d;]*m")  # some repositories enable pytest's colours in any case
_FIXTURE = re.compile(r"\b(setUp|tearDown)(Class|Module)\b")
_UNITTEST_END = re.compile(r"^Ran (\d{1,9}) tests? in [\d.]+s\n+(OK|FAILED|NO TESTS RAN)\b.*$", re.MULTILINE)


def runner_report(log: str, parser: LogParser) -> RunnerReport | None:
    """The final report in a log of pytest or unittest; None if neither finished."""
    log = _ANSI_COLOUR.sub("", log)
    ran = list(_UNITTEST_END.finditer(log))
    ended = list(_PYTEST_END.finditer(log))
    if ended and (not ran or ended[-1].start() > ran[-1].start()):
        counts = {word: int(count) for count, word in re.findall(r"(\d+) ([a-z]+)", ended[-1][1])}
        failures = sum(counts.get(word, 0) for word in ("failed", "error", "errors"))
        sections = list(_PYTEST_SUMMARY.finditer(log))
        statuses = parser(log[sections[-1].end() :]) if sections else None
        return RunnerReport(counts.get("passed", 0) + counts.get("xpassed", 0), failures == 0, statuses)
    if ran:
        # "Ran" excludes failures of a fixture (`setUpClass`), and in some versions of Python the skipped tests.
        failed = [
            name
            for name, status in parser(log).items()
            if status not in ("PASSED", "SKIPPED") and not _FIXTURE.search(name)
        ]
        return RunnerReport(max(0, int(ran[-1][1]) - len(failed)), ran[-1][2] == "OK")
    return None
