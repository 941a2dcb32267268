"""Python: virtual environments, pytest, unittest and the runners of Django and SymPy."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from swegym_env.languages import (
    Blinded,
    Compared,
    ComparedObjects,
    Control,
    Copy,
    ExpectedValue,
    Language,
    Lineup,
    LogParser,
    Merged,
    RunnerReport,
    Scrutiny,
    Twins,
    Variation,
)
from swegym_env.languages.python.blind import make_blind
from swegym_env.languages.python.controls import control_files, make_control
from swegym_env.languages.python.equality import compared_objects, record_comparisons, vary_compared
from swegym_env.languages.python.lineup import (
    copies_passed,
    expectations,
    make_lineup,
    only_tests,
    unexamined,
    without_tests,
)
from swegym_env.languages.python.logs import (
    PARSERS,
    REPOSITORY_PARSERS,
    parse_pytest,
    parse_unittest,
    runner_report,
)
from swegym_env.languages.python.machinery import test_machinery
from swegym_env.languages.python.merged import make_merged
from swegym_env.languages.python.questions import may_have_many_answers
from swegym_env.languages.python.screening import changed_functions, scrutiny_of, without_means
from swegym_env.languages.python.setup import PythonRecipe, find_recipe
from swegym_env.languages.python.state import keeps_state
from swegym_env.languages.python.twins import given_tests, make_twins, written_values
from swegym_env.tasks.task import Task

__all__ = ["Python"]

# Files that pytest, unittest, coverage, nox, git's hooks and the interpreter itself read before the tests.
_RUNNER_FILES = (
    *("conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg"),
    *("pyproject.toml", ".coveragerc", "noxfile.py", "pyvenv.cfg", ".python-version", "pytest_plugins.py"),
    *("sitecustomize.py", "usercustomize.py"),
)
_RUNNER_MODULES = frozenset(
    (
        *("pytest", "_pytest", "py", "pluggy", "iniconfig", "nose", "xdist", "pytest_cov"),
        *("hypothesis", "_hypothesis_pytestplugin", "pkg_resources", "setuptools"),
    )
)
_SOURCE_ROOTS = frozenset({"src", "lib"})
_INSIDE = Path(__file__).with_name("inside")
_INSIDE_PLACE = "/opt/swegym-certify"
_UNITTEST = re.compile(r"python3 -m unittest( [\w./-]+)*")


class Python(Language):
    """See the module."""

    name = "python"
    suffixes = (".py", ".pyi", ".pyx")
    parsers = PARSERS
    repository_parsers = REPOSITORY_PARSERS
    nested_logs = frozenset({"pytest-dev/pytest"})  # its published lists contain names from logs that its tests print
    reporting_runners = re.compile(r"\b(pytest|py\.test|unittest)\b")
    installing_lines = re.compile(r"conda |(python -m )?pip install|python setup\.py (install|develop)")
    protected_files = re.compile(
        r"^(test_.*|.*_tests?|tests?)\.py$"
        rf"|^({'|'.join(map(re.escape, _RUNNER_FILES))})\Z"
        r"|\.(pth|pyc|pyo|so|pyd|egg-link)$"
    )
    protected_directories = re.compile(
        r"__pycache__|(site|dist)-packages|\.?venv|\.tox|\.nox|\.eggs|.*\.(egg|dist)-info"
    )
    deterministic_env: Mapping[str, str] = {"PYTHONHASHSEED": "0"}

    def find_recipe(self, task: Task) -> PythonRecipe | None:
        return find_recipe(task)

    def parser_of_command(self, command: str) -> LogParser:
        return parse_unittest if re.search(r"\bunittest\b", command) else parse_pytest

    def imported_once(self, command: str) -> tuple[str, ...]:
        return ("unittest",) if _UNITTEST.fullmatch(command) else ()

    def runner_report(self, log: str, parser: LogParser) -> RunnerReport | None:
        return runner_report(log, parser)

    def shadows_module(self, parts: list[str], base: Path) -> bool:
        """Whether the path begins a new top-level module that hides one which Python or a test runner needs."""
        if parts[0] in _SOURCE_ROOTS and len(parts) > 1:
            base, parts = base / parts[0], parts[1:]
        module = parts[0].removesuffix(".py")
        importable = len(parts) > 1 or parts[0].endswith(".py")
        needed = module in sys.stdlib_module_names or module in _RUNNER_MODULES
        return importable and needed and not (base / parts[0]).exists()

    def test_machinery(self, task: Task, base: Path) -> frozenset[str]:
        return test_machinery(task.test_patch, control_files(task), base)

    def scrutiny_of(self, patch: str, base: Path, gold: str = "") -> Scrutiny:
        return scrutiny_of(patch, base, gold)

    def may_have_many_answers(self, files: Mapping[str, str], names: Iterable[str]) -> bool:
        return may_have_many_answers(files, names)

    def without_means(self, patch: str, base: Path, gold: str = "") -> tuple[str, ...]:
        return without_means(patch, base, gold)

    def control_files(self, task: Task) -> tuple[str, ...]:
        return control_files(task)

    def make_control(
        self, files: Mapping[str, str], names: Iterable[str], added_lines: Mapping[str, frozenset[int]], seed: int
    ) -> Control | None:
        return make_control(files, names, added_lines, seed)

    def expectations(
        self, files: Mapping[str, str], names: Iterable[str], added_lines: Mapping[str, frozenset[int]]
    ) -> tuple[ExpectedValue, ...]:
        return expectations(files, names, added_lines)

    def unexamined(
        self, files: Mapping[str, str], names: Iterable[str], added_lines: Mapping[str, frozenset[int]]
    ) -> frozenset[str]:
        return unexamined(files, names, added_lines)

    def record_comparisons(
        self,
        files: Mapping[str, str],
        names: Iterable[str],
        senders: Iterable[str] = (),
        questions: Sequence[Compared] = (),
        known: Collection[Compared] = (),
    ) -> Blinded | None:
        return record_comparisons(files, names, senders, questions, known)

    def compared_objects(self, files: Mapping[str, str], names: Iterable[str], sent: bytes) -> ComparedObjects:
        return compared_objects(files, names, sent)

    def changed_functions(self, patch: str, base: Path) -> Collection[tuple[str, str]]:
        return changed_functions(patch, base)

    def vary_compared(
        self, one: Compared, like: Compared | None, seed: int, number: int
    ) -> Sequence[tuple[Compared, Compared]]:
        return vary_compared(one, like, seed, number)

    def make_lineup(
        self,
        files: Mapping[str, str],
        names: Iterable[str],
        added_lines: Mapping[str, frozenset[int]],
        shares: Mapping[ExpectedValue, tuple[int, int]],
        seed: int,
    ) -> Lineup:
        return make_lineup(files, names, added_lines, shares, seed)

    def copies_passed(self, lineup: Lineup, tests: Mapping[str, str]) -> Mapping[Copy, bool]:
        return copies_passed(lineup, tests)

    def keeps_state(self, patch: str, base: Path, gold: str = "") -> bool:
        return keeps_state(patch, base, gold)

    def given_tests(
        self, files: Mapping[str, str], names: Iterable[str], rewritten: Mapping[str, str] | None = None
    ) -> frozenset[str]:
        return given_tests(files, names, rewritten)

    def written_values(self, files: Mapping[str, str]) -> Mapping[str, Sequence[Any]]:
        return written_values(files)

    def make_twins(self, files: Mapping[str, str], names: Iterable[str], seed: int, twins: int) -> Twins:
        return make_twins(files, names, seed, twins)

    def make_blind(
        self, files: Mapping[str, str], names: Iterable[str], left: frozenset[str], seed: int, *, computed: bool = False
    ) -> Blinded | None:
        return make_blind(files, names, left, seed, computed=computed)

    def only_tests(self, files: Mapping[str, str], names: Iterable[str]) -> Mapping[str, str] | None:
        return only_tests(files, names)

    def without_tests_beside(self, files: Mapping[str, str], kept: Collection[str]) -> Mapping[str, str]:
        return without_tests(files, kept)

    def make_merged(
        self,
        files: Mapping[str, str],
        blinded: Blinded,
        names: Iterable[str],
        added_lines: Mapping[str, frozenset[int]],
        shares: Mapping[ExpectedValue, tuple[int, int]],
        seed: int,
        *,
        sure: frozenset[str],
    ) -> Merged | None:
        return make_merged(files, blinded, names, added_lines, shares, seed, sure=sure)

    def vary(self, env: Mapping[str, str], *, order: str, seed: int, busy: int) -> Variation:
        """See `Language.vary`; unittest is reordered by a `sitecustomize`, pytest by a plugin, both in `inside/`."""
        files = {
            f"{_INSIDE_PLACE}/{path.name}": path.read_text(encoding="utf-8") for path in sorted(_INSIDE.glob("*.py"))
        }
        varied = {**env, "PYTHONHASHSEED": str(seed)}
        if busy:
            varied["SWEGYM_LOAD"] = str(busy)
        if order != "own":
            varied["SWEGYM_ORDER"] = order if order == "reversed" else f"{order} {seed}"
            varied["PYTEST_ADDOPTS"] = f"{env.get('PYTEST_ADDOPTS', '')} -p swegym_order".strip()
        if busy or order != "own":
            varied["PYTHONPATH"] = ":".join(filter(None, [_INSIDE_PLACE, env.get("PYTHONPATH", "")]))
        return Variation(files, varied)
